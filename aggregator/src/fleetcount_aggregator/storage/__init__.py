"""What one aggregator remembers: rows in a database, and reports in logs beside it or in tables of their own."""
