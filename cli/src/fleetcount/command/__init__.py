"""What commands are made of: groups that load late, numbers, files, results, progress, exit codes."""
