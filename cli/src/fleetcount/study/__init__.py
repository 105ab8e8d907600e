"""Study before anybody is asked: plans, simulations, tables of persons."""
