"""What a device loses over a whole question of releases: charges as vectors of Renyi losses, budgets, statements."""
