"""Answers people can use: sums, changes and simultaneous intervals of a series' table, readable numbers, exports.

`table` holds what was released; `combinations` answers questions fixed before looking and `chosen` those found by
looking; `readable`, `smoothing` and `hierarchy` are readings beside the raw numbers; `sides` and `meter` say what is
proven and what is inferred; `places` and `export` write files. Works on plain columns and never sees a task.
"""
