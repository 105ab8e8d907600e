"""Ready specifications of questions: of one window, of a month of hourly windows, of a drill-down."""
