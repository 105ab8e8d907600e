"""What a device loses over a whole series of releases: charges as vectors of Renyi losses, budgets, statements."""
