"use strict";
/* The figures of a study's report, drawn from the numbers that stand in the page: panels by uPlot, a map by Leaflet.
 * Loads as a plain script, also from a file; where it does not run, the pictures stay. */
(function (fleetcount) {
  const { ink } = fleetcount;
  const at = (id) => document.getElementById(id);
  const FONT = '12px system-ui, "DejaVu Sans", sans-serif';
  const ROW_PX = 26;
  const PANEL_PX = 300;
  const AXIS_PX = 30;
  const TOP_PX = 8;
  const NEAR_PX = 28;

  const paint = (style) => (style.colour[0] === "#" ? style.colour : ink(style.colour));

  /** Return a number of an axis in words: 1,234 or 12k or 95 %. */
  function tickText(scale, value) {
    if (value === null) return "";
    if (scale.percent) return Number((100 * value).toFixed(1)) + " %";
    const options = Math.abs(value) < 10000 ? {} : { notation: "compact" };
    const text = value.toLocaleString("en", { maximumSignificantDigits: 3, ...options });
    return text.replace("K", "k").replace("-", "−");
  }

  /** Return a text that is at most so wide, in pixels, in the font of a context; what was cut is shown by dots. */
  function fitted(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    let kept = text.length;
    while (kept > 1 && context.measureText(text.slice(0, kept) + "…").width > width) kept--;
    return text.slice(0, kept) + "…";
  }

  /** Add the outline of a mark to a path: circle, square, diamond or triangle, all of one size to the eye. */
  function outline(context, shape, x, y, radius) {
    const side = radius * 0.9;
    const corners = [
      [],
      [[-side, -side], [side, -side], [side, side], [-side, side]],
      [[0, -1.3 * radius], [1.3 * radius, 0], [0, 1.3 * radius], [-1.3 * radius, 0]],
      [[0, -1.2 * radius], [1.1 * radius, radius], [-1.1 * radius, radius]],
    ][shape % 4];
    if (!corners.length) {
      context.moveTo(x + radius, y);
      context.arc(x, y, radius, 0, 2 * Math.PI);
      return;
    }
    corners.forEach(([right, down], place) => context[place ? "lineTo" : "moveTo"](x + right, y + down));
    context.closePath();
  }

  /** Draw what lies in a panel into uPlot's canvas: band and rule, then paths, error bars and marks. */
  function drawContent(plot, panel) {
    const context = plot.ctx;
    const { left, top, width, height } = plot.bbox;
    const pixel = window.devicePixelRatio;
    const x = (value) => plot.valToPos(value, "x", true);
    const y = (value) => plot.valToPos(value, "y", true);
    const stroke = (colour, thick, points) => {
      context.strokeStyle = colour;
      context.lineWidth = thick * pixel;
      context.beginPath();
      points.forEach(([across, up], place) => context[place ? "lineTo" : "moveTo"](across, up));
      context.stroke();
    };
    context.save();
    const along = panel.across === "x";
    if (panel.band) {
      const [from, to] = panel.band.map(along ? x : y);
      context.fillStyle = ink("within");
      // Behind what is there already: the grid.
      context.globalCompositeOperation = "destination-over";
      if (along) context.fillRect(from, top, to - from, height);
      else context.fillRect(left, to, width, from - to);
      context.globalCompositeOperation = "source-over";
    }
    if (panel.rule !== null) {
      const place = (along ? x : y)(panel.rule);
      const ends = along ? [[place, top], [place, top + height]] : [[left, place], [left + width, place]];
      stroke(ink("rule"), 1.4, ends);
    }
    context.lineJoin = "round";
    for (const [style, path] of panel.paths)
      stroke(paint(style), 2, path.map(([across, up]) => [x(across), y(up)]));
    for (const mark of panel.marks)
      if (mark.bar) stroke(paint(mark.style), 1.5, mark.bar.map(([across, up]) => [x(across), y(up)]));
    for (const mark of panel.marks) {
      context.fillStyle = paint(mark.style);
      context.beginPath();
      outline(context, mark.style.shape, x(mark.x), y(mark.y), (mark.small ? 2.6 : 3.8) * pixel);
      context.fill();
    }
    context.fillStyle = ink("soft");
    context.font = 12 * pixel + "px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const row of panel.empty) context.fillText("nothing released", left + 8 * pixel, y(row + 0.5));
    context.restore();
  }

  /** Keep ticks at powers of ten of a logarithmic axis, and at 2 and 5 times them, as far as there is room for words. */
  function logTicks(plot, ticks, axis) {
    const { min, max } = plot.scales[axis ? "y" : "x"];
    const decade = plot.bbox[axis ? "height" : "width"] / window.devicePixelRatio / Math.log10(max / min);
    const room = axis ? 22 : 44;
    return ticks.map((tick) => {
      const power = Math.floor(Math.log10(tick) + 1e-9);
      const digit = Math.round(tick / 10 ** power);
      if (digit === 1) return power % Math.ceil(room / decade) ? null : tick;
      return (digit === 2 || digit === 5) && Math.log10(2) * decade >= room ? tick : null;
    });
  }

  function axisOf(scale) {
    const whole = [1, 10, 100, 1000, 10000, 100000].flatMap((power) => [power, 2 * power, 5 * power]);
    return {
      stroke: () => ink("soft"),
      font: FONT,
      grid: { stroke: () => ink("grid"), width: 1, ...(scale.log ? { filter: logTicks } : {}) },
      ticks: { show: false },
      size: AXIS_PX,
      space: 60,
      ...(scale.log ? { filter: logTicks } : {}),
      ...(scale.whole ? { incrs: whole } : {}),
      values: (plot, ticks) => ticks.map((tick) => tickText(scale, tick)),
    };
  }

  const rangeOf = (scale) => ({ time: false, distr: scale.log ? 3 : 1, range: [scale.low, scale.high] });

  /** Draw a panel into an element, and say a mark's numbers in `told`, by pointer and by arrow keys. */
  function drawPanel(element, told, panel) {
    const size = () => ({
      width: Math.max(240, element.clientWidth),
      height: panel.rows.length ? panel.rows.length * ROW_PX + AXIS_PX + TOP_PX : PANEL_PX,
    });
    const room = () => 0.42 * size().width;
    const measure = document.createElement("canvas").getContext("2d");
    measure.font = FONT;
    const widest = (texts) => Math.max(...texts.map((text) => measure.measureText(text || "").width));
    const upright = { ...axisOf(panel.y), space: 30, size: (plot, texts) => (texts ? widest(texts) + 14 : 40) };
    if (panel.rows.length) {
      upright.splits = () => panel.rows.map((row, place) => place + 0.5);
      upright.values = () => panel.rows.map((row) => fitted(measure, row, room()));
      upright.grid = { show: false };
    }
    // Its two points span the axes and are not drawn: the hook draws all marks.
    const plot = new window.uPlot(
      {
        ...size(),
        // Half the word of a last tick stands beside the axis.
        padding: [TOP_PX, 24, 0, 0],
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, points: { show: false }, x: false, y: false },
        scales: { x: rangeOf(panel.x), y: { ...rangeOf(panel.y), dir: panel.rows.length ? -1 : 1 } },
        axes: [axisOf(panel.x), upright],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: { draw: [(self) => drawContent(self, panel)], setCursor: [(self) => point(self.cursor)] },
      },
      [[panel.x.low, panel.x.high], [panel.y.low, panel.y.high]],
      element,
    );
    const ring = document.createElement("div");
    ring.className = "ring";
    ring.hidden = true;
    plot.over.append(ring);
    const marks = panel.marks.filter((mark) => mark.text);
    const place = (mark) => [plot.valToPos(mark.x, "x"), plot.valToPos(mark.y, "y")];
    let chosen = -1;

    function choose(next) {
      chosen = next;
      ring.hidden = next < 0;
      if (next < 0) return;
      const [left, top] = place(marks[next]);
      ring.style.left = left + "px";
      ring.style.top = top + "px";
      if (told.textContent !== marks[next].text) told.textContent = marks[next].text;
    }

    function point(cursor) {
      if (!marks.length || cursor.left < 0) return;
      const far = marks.map((mark) => {
        const [left, top] = place(mark);
        return Math.hypot(left - cursor.left, top - cursor.top);
      });
      const nearest = far.indexOf(Math.min(...far));
      if (far[nearest] <= NEAR_PX) choose(nearest);
    }

    element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step || !marks.length) return;
      event.preventDefault();
      choose(chosen < 0 ? 0 : (chosen + step + marks.length) % marks.length);
    });
    new ResizeObserver(() => {
      plot.setSize(size());
      choose(chosen);
    }).observe(element);
    return plot;
  }

  function drawStudyMap({ degrees, lines, cells, texts, layers }) {
    const scale = fleetcount.colourScale(1);
    const drawn = fleetcount.drawMap(at("map"), {
      cells,
      degrees,
      lines,
      scale,
      tip: (value) => texts[value],
      onPick: (value) => {
        drawn.pick([value]);
        at("map-told").textContent = texts[value];
      },
    });
    const buttons = document.querySelectorAll("#map-layers button");

    function choose(place) {
      // One object for the map's life: the map keeps the scale that it was made with.
      Object.assign(scale, fleetcount.colourScale(layers[place].top, layers[place].unit));
      drawn.show(layers[place].values, null, layers[place].hatched);
      fleetcount.drawScale(at("map-scale"), scale);
      for (const button of buttons) button.setAttribute("aria-pressed", String(Number(button.value) === place));
    }
    for (const button of buttons) button.addEventListener("click", () => choose(Number(button.value)));
    choose(Math.min(1, layers.length - 1));
  }

  function start() {
    if (!at("report-data")) return;
    const { panels, map } = JSON.parse(at("report-data").textContent);
    for (const still of document.querySelectorAll(".still")) still.hidden = true;
    for (const drawn of document.querySelectorAll(".drawn")) drawn.hidden = false;
    const plots = Object.entries(panels).map(([name, panel]) => drawPanel(at(name), at(name + "-told"), panel));
    if (map) drawStudyMap(map);
    // A canvas keeps its colours: paper, and a screen that becomes dark, need others.
    const redraw = () => plots.forEach((plot) => plot.redraw(false, true));
    for (const query of ["(prefers-color-scheme: dark)", "print"])
      window.matchMedia(query).addEventListener("change", redraw);
  }

  start();
})((window.fleetcount = window.fleetcount || {}));
