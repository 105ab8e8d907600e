"use strict";
/* The map of a simulation's report, in place of its pictures: truth, estimate and interval of one release, one at a
 * time. Everything stands in the page itself; where this does not run, the pictures stay. */
(function (fleetcount) {
  const { shown, interval } = fleetcount;
  const at = (id) => document.getElementById(id);

  function start() {
    if (!at("map-data")) return;
    const { degrees, cells, truth, estimate, low, high } = JSON.parse(at("map-data").textContent);
    const width = high.map((end, place) => (end === null ? null : end - low[place]));
    const most = (numbers) => numbers.reduce((top, number) => Math.max(top, number || 0), 1);
    const counts = Math.max(most(truth), most(estimate));
    const layers = { truth: [truth, counts], estimate: [estimate, counts], width: [width, most(width)] };

    const sentence = (value) =>
      cells[value - 1].label + ": truth " + shown(truth[value - 1]) + ", estimate " + shown(estimate[value - 1]) +
      (low[value - 1] === null ? "" : ", interval " + interval(low[value - 1], high[value - 1], estimate[value - 1]));

    at("map-live").hidden = false;
    document.querySelector("#figure-map .panels").hidden = true;
    const scale = fleetcount.colourScale(1);
    const drawn = fleetcount.drawMap(at("map"), {
      cells,
      degrees,
      scale,
      tip: sentence,
      onPick: (value) => {
        drawn.pick([value]);
        at("map-told").textContent = sentence(value);
      },
    });

    function choose(name) {
      const [numbers, top] = layers[name];
      // One object for the map's life: the map keeps the scale that it was made with.
      Object.assign(scale, fleetcount.colourScale(top));
      drawn.show(numbers);
      fleetcount.drawScale(at("map-scale"), scale);
      for (const button of document.querySelectorAll("#map-layers button"))
        button.setAttribute("aria-pressed", String(button.value === name));
    }
    for (const button of document.querySelectorAll("#map-layers button"))
      button.addEventListener("click", () => choose(button.value));
    choose("estimate");
  }

  start();
})((window.fleetcount = window.fleetcount || {}));
