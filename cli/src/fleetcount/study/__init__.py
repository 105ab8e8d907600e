"""Study before any device is asked: plans, simulations, tables of persons."""
