"use strict";
/* Tables of the numbers that a picture shows, for readers who do not see it, and how numbers are written. */
(function (fleetcount) {
  /** Return a count with separators; whole where it is large, one place behind the point where it is small: rounded
   * as in record_json.py. */
  const shown = (value) => rounded(value, "halfEven");

  function rounded(value, roundingMode) {
    if (value === null || value === undefined || !Number.isFinite(Number(value))) return "–";
    const number = Number(value);
    const places = Number.isInteger(number) || Math.abs(number) >= 100 ? 0 : 1;
    const digits = { minimumFractionDigits: places, maximumFractionDigits: places, roundingMode };
    // As a text: a whole number beyond 2^53 keeps its digits, and 47.4 is not the double a little below it.
    const text = new Intl.NumberFormat("en", digits).format(String(value));
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

  /** Return an interval in words, its ends rounded outwards; "0, below noise" where no count explains an estimate far
   * below 0, as "0 to 0" would read as an exact count. */
  function interval(low, high, estimate) {
    if (belowNoise(low, high, estimate)) return BELOW_NOISE;
    return rounded(low, "floor") + " to " + rounded(high, "ceil");
  }

  const picks = new WeakMap();

  /**
   * Fill a table: `columns` are [{name, number, wide}], `number` aligned right, `wide` for sentences, `rows` lists of
   * texts, the first the row's head. `onPick` makes rows buttons: it is called with the row's number. A table with as
   * many rows under the same columns keeps its elements: a reader's focus stays where it is.
   */
  function fillTable(table, caption, columns, rows, onPick) {
    picks.set(table, onPick);
    const shape = JSON.stringify([columns, rows.length]);
    if (table.dataset.shape !== shape) {
      table.dataset.shape = shape;
      table.replaceChildren(document.createElement("caption"), headOf(columns), bodyOf(table, columns, rows));
    }
    table.caption.textContent = caption;
    rows.forEach((row, place) => {
      row.forEach((text, column) => {
        const cell = table.tBodies[0].rows[place].cells[column];
        (cell.firstElementChild || cell).textContent = text;
      });
    });
  }

  function headOf(columns) {
    const head = document.createElement("thead");
    const top = head.insertRow();
    for (const column of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = column.name;
      if (column.number) cell.className = "number";
      top.append(cell);
    }
    return head;
  }

  function bodyOf(table, columns, rows) {
    const body = document.createElement("tbody");
    rows.forEach((_, place) => {
      const line = body.insertRow();
      columns.forEach(({ number, wide }, column) => {
        const cell = document.createElement(column ? "td" : "th");
        if (!column) cell.scope = "row";
        cell.className = number ? "number" : wide ? "wide" : "";
        if (!column && picks.get(table)) {
          const button = document.createElement("button");
          button.type = "button";
          button.addEventListener("click", () => picks.get(table)(place));
          cell.append(button);
        }
        line.append(cell);
      });
    });
    return body;
  }

  Object.assign(fleetcount, { shown, interval, belowNoise, mapNotes, fillTable });
})((window.fleetcount = window.fleetcount || {}));
