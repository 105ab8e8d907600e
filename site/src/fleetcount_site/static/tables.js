"use strict";
/* Tables of the numbers that a picture shows, for readers who do not see it, and how numbers are written. */
(function (fleetcount) {
  /** Return a count with separators; whole where it is large, one place behind the point where it is small: rounded
   * as in record_json.py. */
  function shown(value) {
    if (value === null || value === undefined || !Number.isFinite(Number(value))) return "–";
    const number = Number(value);
    const places = Number.isInteger(number) || Math.abs(number) >= 100 ? 0 : 1;
    const digits = { minimumFractionDigits: places, maximumFractionDigits: places, roundingMode: "halfEven" };
    const text = number.toLocaleString("en", digits);
    return text === "-0" || text === "-0.0" ? "0" : text;
  }

  const BELOW_NOISE = "0, below noise";

  const belowNoise = (low, high, estimate) => estimate < 0 && Number(low) === 0 && Number(high) === 0;

  /** Return what stands beside a map: what its looks mean, and of squares how they are named. */
  function mapNotes(labels) {
    const squares = labels.every((label) => /^[0-9]+,[0-9]+$/.test(label));
    return [
      "faint: the interval holds 0",
      "hatched: " + BELOW_NOISE,
      ...(squares ? ["cells are x,y: x from the west, y from the south"] : []),
    ];
  }

  /** Return an interval in words; "0, below noise" where no count explains an estimate far below 0, as "0 to 0"
   * would read as an exact count. */
  function interval(low, high, estimate) {
    if (belowNoise(low, high, estimate)) return BELOW_NOISE;
    return shown(low) + " to " + shown(high);
  }

  /**
   * Fill a table: `columns` are [{name, number, wide}], `number` aligned right, `wide` for sentences, `rows` lists of
   * texts, the first the row's head. `onPick` makes rows buttons: it is called with the row's number.
   */
  function fillTable(table, caption, columns, rows, onPick) {
    const head = document.createElement("thead");
    const top = head.insertRow();
    for (const column of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = column.name;
      if (column.number) cell.className = "number";
      top.append(cell);
    }
    const body = document.createElement("tbody");
    rows.forEach((row, place) => {
      const line = body.insertRow();
      row.forEach((text, column) => {
        const cell = document.createElement(column ? "td" : "th");
        if (!column) cell.scope = "row";
        cell.className = columns[column].number ? "number" : columns[column].wide ? "wide" : "";
        if (!column && onPick) {
          const button = document.createElement("button");
          button.type = "button";
          button.textContent = text;
          button.addEventListener("click", () => onPick(place));
          cell.append(button);
        } else cell.textContent = text;
        line.append(cell);
      });
    });
    const title = document.createElement("caption");
    title.textContent = caption;
    table.replaceChildren(title, head, body);
  }

  Object.assign(fleetcount, { shown, interval, belowNoise, mapNotes, fillTable });
})((window.fleetcount = window.fleetcount || {}));
