"""Read what aggregators say of a question and what they released: status, records, tables, answers."""
