"use strict";
/* A map of cells on Leaflet's canvas: colours by a scale that stays, streets below, one cell or several picked by hand
 * or by keyboard. It knows no record: it is given outlines and numbers. Loads as a plain script, also from a file. */
(function (fleetcount) {
  const STOPS = [
    [255, 247, 214],
    [253, 219, 141],
    [247, 176, 91],
    [226, 124, 71],
    [189, 73, 79],
    [133, 40, 96],
    [74, 20, 88],
  ];

  const OUTLINED = 1500;

  /** Return a scale from 0 to `most`: `colour(value)` and `step(value)`, 0 to 63, what lies outside at the ends. */
  function colourScale(most, unit) {
    const steps = 64;
    const end = most > 0 ? most : 1;
    const colours = [];
    for (let step = 0; step < steps; step++) {
      const at = (step / (steps - 1)) * (STOPS.length - 1);
      const below = Math.min(Math.floor(at), STOPS.length - 2);
      const parts = STOPS[below].map((part, channel) =>
        Math.round(part + (STOPS[below + 1][channel] - part) * (at - below)),
      );
      colours.push("rgb(" + parts.join(",") + ")");
    }
    const step = (value) => Math.max(0, Math.min(steps - 1, Math.round((value / end) * (steps - 1))));
    return { most: end, unit: unit || "devices", colours, step, colour: (value) => colours[step(value)] };
  }

  /** Write a scale's bar with its ends and unit into an element; `notes` are further entries, as texts. */
  function drawScale(element, scale, notes) {
    const bar = document.createElement("canvas");
    bar.width = scale.colours.length;
    bar.height = 1;
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", "colours from 0 to " + fleetcount.shown(scale.most) + " " + scale.unit);
    const context = bar.getContext("2d");
    scale.colours.forEach((colour, place) => {
      context.fillStyle = colour;
      context.fillRect(place, 0, 1, 1);
    });
    const entry = document.createElement("span");
    entry.append("0", bar, fleetcount.shown(scale.most) + " " + scale.unit);
    element.replaceChildren(
      entry,
      ...(notes || []).map((note) => {
        const span = document.createElement("span");
        span.textContent = note;
        return span;
      }),
    );
    element.classList.add("scale");
  }

  function ink(name) {
    return getComputedStyle(document.documentElement)
      .getPropertyValue("--" + name)
      .trim();
  }

  /**
   * Draw a map into an element.
   *
   * options.cells    [{value, label, ring: [[x, y], ...]}]; rings in degrees (longitude, latitude) or grid units
   * options.degrees  whether rings are longitudes and latitudes
   * options.lines    whether the cells are roads: lines along their rings, which take the colours
   * options.streets  [[[x, y], ...], ...] lines in the same coordinates, or nothing
   * options.scale    of colourScale
   * options.onPick   called with the value of the cell picked, and whether it is to be added to others
   * options.onArea   called with the values of all cells inside a rectangle that was drawn (`draw(true)` first)
   * options.tip      returns the text shown beside the pointer for a value
   * options.attribution  text of whose streets these are
   *
   * Returns {show(numbers, faint, hatched), pick(values), draw(on), area(bounds), fit(), map}. `numbers[i]` belongs to
   * cells[i]; null leaves a cell empty; where `faint[i]` is true the cell is drawn faintly, where `hatched[i]` is true
   * lines lie over it.
   */
  function drawMap(element, options) {
    const L = window.L;
    shape(element, options.cells, options.degrees);
    const renderer = L.canvas({ padding: 0.2 });
    const flat = (point) => [point[1], point[0]];
    const map = L.map(element, {
      crs: options.degrees ? L.CRS.EPSG3857 : L.CRS.Simple,
      renderer,
      preferCanvas: true,
      minZoom: -20,
      maxZoom: 22,
      zoomSnap: 0,
      zoomDelta: 0.5,
      wheelPxPerZoomLevel: 120,
      zoomAnimation: false,
      fadeAnimation: false,
      inertia: false,
      boxZoom: false,
      attributionControl: true,
    });
    map.attributionControl.setPrefix(false);
    if (options.attribution) map.attributionControl.addAttribution(escapeText(options.attribution));
    const places = new Map();
    const rule = ink("rule"),
      paper = ink("card"),
      chosen = ink("s0");
    // Thousands of outlines would hide the colours, and take as long to draw as these.
    const quiet = options.lines
      ? { weight: 4 }
      : { color: rule, weight: 0.4, opacity: 0.5, stroke: options.cells.length <= OUTLINED };
    const marked = options.lines ? { weight: 9 } : { stroke: true, color: chosen, weight: 2.5, opacity: 1 };
    const layers = options.cells.map((cell, place) => {
      places.set(cell.value, place);
      const layer = (options.lines ? L.polyline : L.polygon)(cell.ring.map(flat), {
        renderer,
        ...quiet,
        fillColor: paper,
        fillOpacity: 0,
        smoothFactor: 0,
        noClip: true,
        bubblingMouseEvents: true,
      });
      layer.on("click", (event) => {
        if (options.onPick && !drawing)
          options.onPick(cell.value, event.originalEvent.shiftKey || event.originalEvent.ctrlKey);
      });
      return layer.addTo(map);
    });
    const lines = (options.streets || []).length
      ? L.polyline(
          options.streets.map((line) => line.map(flat)),
          {
            renderer,
            color: ink("street"),
            weight: 1.2,
            opacity: 0.75,
            interactive: false,
            smoothFactor: 1,
          },
        ).addTo(map)
      : null;
    const bounds = L.latLngBounds([]);
    layers.forEach((layer) => bounds.extend(layer.getBounds()));
    const fit = () => {
      map.invalidateSize();
      if (bounds.isValid()) map.fitBounds(bounds, { padding: [8, 8], animate: false });
    };
    fit();
    if (bounds.isValid()) map.setMaxBounds(bounds.pad(0.5)).setMinZoom(map.getZoom() - 1.5);
    if (options.tip) {
      const tip = L.tooltip({ sticky: true, direction: "top", opacity: 1, offset: [0, -6] });
      layers.forEach((layer, place) => {
        layer.on("mouseover mousemove", (event) => {
          const text = document.createElement("span");
          text.textContent = options.tip(options.cells[place].value);
          tip.setContent(text).setLatLng(event.latlng);
          if (!map.hasLayer(tip)) tip.addTo(map);
        });
      });
      map.on("mouseout", () => tip.remove());
    }

    let drawing = false;
    let corner = null,
      frame = null;
    function draw(on) {
      drawing = on;
      map.dragging[on ? "disable" : "enable"]();
      element.style.cursor = on ? "crosshair" : "";
      if (!on && frame) {
        frame.remove();
        frame = null;
      }
    }
    const inside = (area) =>
      options.cells
        .filter((_, place) => area.contains(layers[place].getBounds().getCenter()))
        .map((cell) => cell.value);
    // Pointer events, so that a finger draws as a mouse does; captured, so that a stroke may end outside.
    element.addEventListener("pointerdown", (event) => {
      if (!drawing || event.target.closest(".leaflet-control")) return;
      element.setPointerCapture(event.pointerId);
      corner = map.mouseEventToLatLng(event);
    });
    element.addEventListener("pointermove", (event) => {
      if (!corner) return;
      const area = L.latLngBounds(corner, map.mouseEventToLatLng(event));
      if (frame) frame.setBounds(area);
      else {
        const look = { color: chosen, weight: 2, fillOpacity: 0.08, interactive: false, renderer };
        frame = L.rectangle(area, look).addTo(map);
      }
    });
    element.addEventListener("pointerup", (event) => {
      if (!corner) return;
      const values = inside(L.latLngBounds(corner, map.mouseEventToLatLng(event)));
      corner = null;
      if (frame) {
        frame.remove();
        frame = null;
      }
      if (options.onArea) options.onArea(values);
    });

    const now = new Array(layers.length).fill("");
    /* Three lines from lower left to upper right within the bounds of a cell. */
    const strokes = (place) => {
      const box = layers[place].getBounds(),
        [west, east] = [box.getWest(), box.getEast()],
        [south, north] = [box.getSouth(), box.getNorth()],
        at = (x, y) => [south + (north - south) * y, west + (east - west) * x];
      return [
        [at(0.05, 0.55), at(0.45, 0.95)],
        [at(0.05, 0.05), at(0.95, 0.95)],
        [at(0.55, 0.05), at(0.95, 0.45)],
      ];
    };
    let hatching = null;
    function hatch(hatched) {
      if (hatching) hatching.remove();
      const places = hatched ? hatched.flatMap((on, place) => (on && layers[place] ? [place] : [])) : [];
      const look = { renderer, color: rule, weight: 1.2, opacity: 1, interactive: false, smoothFactor: 0 };
      hatching = places.length ? L.polyline(places.flatMap(strokes), look).addTo(map) : null;
    }
    function show(numbers, faint, hatched) {
      hatch(hatched);
      for (let place = 0; place < layers.length; place++) {
        const number = numbers[place];
        const empty = number === null || number === undefined;
        const step = empty ? -1 : options.scale.step(number);
        const style = step + (faint && faint[place] ? "f" : "");
        if (now[place] === style) continue;
        now[place] = style;
        const colour = empty ? paper : options.scale.colours[step];
        if (options.lines) {
          layers[place].setStyle({ color: empty ? rule : colour, opacity: empty ? 0.4 : 1 });
          continue;
        }
        layers[place].setStyle({
          fillColor: colour,
          fillOpacity: empty ? 0 : faint && faint[place] ? 0.3 : 0.85,
        });
      }
    }
    let picked = [];
    function pick(values) {
      for (const value of picked) layers[places.get(value)].setStyle(quiet);
      picked = values.filter((value) => places.has(value));
      for (const value of picked) {
        const layer = layers[places.get(value)].setStyle(marked);
        if (picked.length < 64) layer.bringToFront();
      }
      if (lines) lines.bringToFront();
    }
    new ResizeObserver(() => map.invalidateSize({ animate: false })).observe(element);
    return { show, pick, draw, area: inside, fit, map };
  }

  /* As high as the cells are at this width, between a third and two thirds of the window. */
  function shape(element, cells, degrees) {
    const all = cells.flatMap((cell) => cell.ring);
    const ends = (axis) =>
      all.reduce(
        ([low, high], point) => [Math.min(low, point[axis]), Math.max(high, point[axis])],
        [Infinity, -Infinity],
      );
    const [west, east] = ends(0),
      [south, north] = ends(1);
    // A degree of longitude is shorter than one of latitude, but at the equator.
    const stretch = degrees ? 1 / Math.cos(((south + north) * Math.PI) / 360) : 1;
    const high = (element.clientWidth * (north - south) * stretch) / (east - west) + 24;
    element.style.height = Math.round(Math.max(innerHeight / 3, Math.min(innerHeight * 0.68, high))) + "px";
  }

  function escapeText(text) {
    const span = document.createElement("span");
    span.textContent = text;
    return span.innerHTML;
  }

  Object.assign(fleetcount, { colourScale, drawScale, drawMap, ink });
})((window.fleetcount = window.fleetcount || {}));
