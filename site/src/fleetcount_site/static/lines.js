"use strict";
/* A cell's count over the windows of a question: its estimate as a line, its interval as the band around it. */
(function (fleetcount) {
  /**
   * Draw a line with its band into an element.
   *
   * data     {times, estimates, low, high}: lists of one length, times in Unix seconds, null where a window is missing
   * title    what it counts; level the interval's level in words; onTime called with the place of a time picked
   *
   * Returns {update(data, title), mark(place), destroy()}.
   */
  function drawLine(element, options) {
    const { ink } = fleetcount;
    const axis = {
      stroke: ink("soft"),
      grid: { stroke: ink("grid"), width: 1 },
      ticks: { stroke: ink("grid"), width: 1 },
    };
    const value = (plot, number) => fleetcount.shown(number);
    // Hours of a day of 24, in UTC as everywhere; the date stands once below the first time of a day.
    const times = (plot, ticks, place, space, step) => {
      let day = "";
      return ticks.map((tick) => {
        const text = new Date(tick * 1000).toISOString(),
          before = day;
        day = text.slice(0, 10);
        if (step >= 86400) return day.slice(5);
        return text.slice(11, 16) + (day === before ? "" : "\n" + day.slice(5));
      });
    };
    const size = () => ({ width: Math.max(260, element.clientWidth), height: 260 });
    // The numbers below are those of the window that is shown, while the pointer is elsewhere.
    let marked = -1;
    const say = (self) => {
      if (self.cursor.idx === null && marked >= 0) self.setLegend({ idx: marked });
    };
    // A line goes from window to window: one between two gaps has a bar for its interval, and its estimate in it.
    const bars = (self) => {
      const [when, high, low, estimates] = self.data;
      const half = 3 * devicePixelRatio,
        y = (number) => self.valToPos(number, "y", true);
      estimates.forEach((estimate, place) => {
        if (estimate === null || [place - 1, place + 1].some((beside) => (estimates[beside] ?? null) !== null)) return;
        const left = self.valToPos(when[place], "x", true) - half;
        for (const [ends, colour] of [
          [[y(high[place]), y(low[place])], ink("band")],
          [[y(estimate) - half / 2, y(estimate) + half / 2], ink("s0")],
        ]) {
          self.ctx.fillStyle = colour;
          self.ctx.fillRect(left, ends[0], 2 * half, ends[1] - ends[0]);
        }
      });
    };
    const columns = (data) => [data.times, data.high, data.low, data.estimates];
    const plot = new window.uPlot(
      {
        ...size(),
        title: "",
        tzDate: (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), "UTC"),
        legend: { live: true },
        cursor: { drag: { x: false, y: false } },
        hooks: { setCursor: [say], draw: [bars] },
        scales: { y: { range: (self, low, high) => [Math.min(0, low), high > 0 ? high * 1.06 : 1] } },
        axes: [
          { ...axis, values: times },
          { ...axis, size: 62, values: (self, ticks) => ticks.map((tick) => fleetcount.shown(tick)) },
        ],
        bands: [{ series: [1, 2], fill: ink("band") }],
        series: [
          { label: "UTC", value: "{YYYY}-{MM}-{DD} {HH}:{mm}" },
          { label: "high", stroke: ink("rule"), width: 1, value, points: { show: false } },
          { label: "low", stroke: ink("rule"), width: 1, value, points: { show: false } },
          { label: "estimate", stroke: ink("s0"), width: 2, value, points: { size: 4 } },
        ],
      },
      columns(options.data),
      element,
    );
    // Beside the canvas: a slider's step moves a line and draws nothing anew.
    const marker = document.createElement("div");
    marker.className = "marker";
    plot.over.append(marker);
    plot.over.addEventListener("click", () => {
      if (options.onTime && plot.cursor.idx !== null) options.onTime(plot.cursor.idx);
    });
    const mark = (place) => {
      marked = place;
      say(plot);
      marker.hidden = place < 0;
      marker.style.left = plot.valToPos(plot.data[0][Math.max(0, place)], "x") + "px";
    };
    new ResizeObserver(() => {
      plot.setSize(size());
      mark(marked);
    }).observe(element);
    return {
      update(data) {
        plot.setData(columns(data));
      },
      mark,
      destroy() {
        plot.destroy();
        element.replaceChildren();
      },
    };
  }

  Object.assign(fleetcount, { drawLine });
})((window.fleetcount = window.fleetcount || {}));
