// What the heatmap's colours show: users, the rate of a category, or how sure a count is. Scale, key, words for a cell and
// the control that chooses.

  const GROUND = [27, 25, 34]; // where there is no rate: none of the scale's colours
  const CLASSES = [[0.1, "within 10%"], [0.25, "within 25%"], [0.5, "within 50%"], [1, "within 100%"], [Infinity, "may be nobody"]];
  const SURE = coloursOf("f4f1fbc9c0e3978dbd655c8a373247"); // light: known well
  const classOf = (layer, i) => CLASSES.findIndex(([most]) => marginAt(layer, i) < most * layer.count[i] || most === Infinity);
  const classShade = (number) => Math.round((255 * number) / (CLASSES.length - 1));
  const hatching = (colour) => `repeating-linear-gradient(135deg, ${colour} 0 3px, rgb(6 5 9 / .5) 3px 4px, rgb(226 220 238 / .55) 4px 5px)`;
  const rates = coloursOf(data.rate_palette);
  // What is hatched and yet a best guess keeps some of its colour.
  const toned = (palette) => palette.map((colour) => greyed(colour).map((part, c) => Math.round(0.55 * part + 0.45 * colour[c])));
  const sayOf = (layer) => (layer.combined ? SAY : SAY_ANY);

  const COUNTED = { ...PAINT };
  const GUESSED = paintOf(colours.map(lighten), toned(colours.map(lighten)));
  const RATED = paintOf(rates, toned(rates), rates.map(() => GROUND));
  const JUDGED = paintOf(SURE);

  const COLOURS = {
    users: {
      paint: (layer) => (layer.fitted ? GUESSED : COUNTED), hatched: true, label: "Map of estimated users", title: () => "Users per km²", fade: (layer) => sayOf(layer).fade, key: (layer) => sayOf(layer).key,
      can: () => true,
      shades: (layer) => ({ shade: Uint8Array.from(layer.density, (d) => Math.round(255 * shadeOf(d))), lost: Uint8Array.from(layer.count, (_, i) => (isLost(layer, i) ? 1 : 0)) }),
      ticks: densityTicks,
    },
    rate: {
      paint: () => RATED, hatched: true, label: "Map of rates",
      title: () => shareOf(state.category), fade: () => "Fade rates known poorly",
      key: () => `± ${significant(50 * scaleOf(state.category).wide, 2)} points or worse`,
      absent: NO_RATE, can: (layer) => Boolean(layer.rates),
      shades(layer) {
        const rate = layer.rates.rate[state.category];
        return {
          shade: Uint8Array.from(rate, (one) => (one === null ? 0 : Math.round(255 * rateShade(scaleOf(state.category), one)))),
          lost: Uint8Array.from(rate, (one, i) => (one === null ? 2 : isWide(layer, i, state.category) ? 1 : 0)),
        };
      },
      ticks: (room) => rateTicks(state.category, room),
      list(layer) {
        const found = layer.rates.highest[state.category];
        if (!found.length) return ["Highest rates", "", [h("p", null, NONE_HIGHER)]];
        return ["Highest rates", "95% for all cells at once", found.map(([i, rate, low, high]) => {
          const [lon, lat] = [region.west + ((layer.x[i] + 0.5) / 2 ** layer.level[i]) * width, region.north - ((layer.y[i] + 0.5) / 2 ** layer.level[i]) * height];
          const button = h("button", { type: "button", title: "Show on the map" }, swatchOf(layer, i), h("span", null, intervalWords(rate, low, high)), h("span", { class: "number" }, place(lon, lat, Math.max(placeDigits - 2, 2))));
          button.addEventListener("click", () => flyTo(layer, i));
          return button;
        })];
      },
    },
    uncertainty: {
      paint: () => JUDGED, hatched: false, label: "Map of how sure the counts are", title: () => "Off by at most, at 95%",
      key: () => "more: may be nobody", can: () => true,
      ramp: `linear-gradient(90deg, ${CLASSES.map((_, i) => `${JUDGED.css[0][classShade(i)]} ${20 * i}% ${20 * (i + 1)}%`).join(",")})`,
      shades: (layer) => ({ shade: Uint8Array.from(layer.count, (_, i) => classShade(classOf(layer, i))), lost: new Uint8Array(layer.n) }),
      ticks: () => [[0, "0"], ...CLASSES.slice(0, -1).map(([most], i) => [(i + 1) / CLASSES.length, `${100 * most}%`])],
      list(layer) {
        const sums = CLASSES.map(() => [0, 0]); // cells, users
        let all = 0;
        for (let i = 0; i < layer.n; i++) {
          const sum = sums[classOf(layer, i)];
          const users = Math.max(layer.count[i], 0);
          if (layer.area[i]) sum[0] += 1;
          sum[1] += users;
          all += users;
        }
        return ["How sure the counts are", "cells; users in them", CLASSES.map(([, words], number) => h("div", null,
          swatch(JUDGED.css[0][classShade(number)]), h("span", null, words), h("span", { class: "number" }, `${whole(sums[number][0])}; ${percent(all ? sums[number][1] / all : 0)}`)))];
      },
    },
  };

  const swatch = (colour) => {
    const mark = h("i", { class: "swatch", "aria-hidden": "true" });
    mark.style.background = colour;
    return mark;
  };
  const swatchOf = (layer, i) => swatch(PAINT.css[0][layer.shade[i]]);

  // ---------------------------------------------------------------- the choice

  Object.assign(state, { colours: "users", category: isFlag ? Math.max(categories.indexOf("true"), 0) : 0 });
  /** What is shown: what was chosen, or users where a layer does not have it. */
  const shown = (layer) => (COLOURS[state.colours].can(layer) ? state.colours : "users");
  const legendTicks = (room) => COLOURS[shown(layers[state.layer])].ticks(room);

  /** Gives layer `number` the colours that were chosen, and says what they mean. */
  function dress(number) {
    const layer = layers[number];
    const name = shown(layer);
    const colours = COLOURS[name];
    const look = name === "rate" ? `rate ${state.category}` : name;
    const paint = colours.paint(layer);
    Object.assign(PAINT, paint);
    Object.assign(LOOK, { hatched: colours.hatched, ramp: colours.ramp, swatch: name === "uncertainty" ? JUDGED.css[0][255] : hatching(paint.css[1][name === "users" ? 70 : 110]) });
    layer.looks ??= {};
    Object.assign(layer, (layer.looks[look] ??= colours.shades(layer)));
    $("scale-title").textContent = `${colours.title()}${name === state.colours ? "" : "; no rates here"}`;
    $("key").textContent = colours.key(layer);
    canvas.setAttribute("aria-label", colours.label);
    const absent = $("absent");
    absent.hidden = !(colours.absent && layer.lost.includes(2));
    absent.querySelector(".swatch").style.background = RATED.css[2][0];
    absent.querySelector("span:last-child").textContent = colours.absent ?? "";
    $("fade").closest("label").hidden = !colours.fade;
    if (colours.fade) $("fade-words").textContent = colours.fade(layer);
    for (const radio of document.querySelectorAll("[name=colours]")) {
      radio.checked = radio.value === state.colours;
      radio.disabled = !COLOURS[radio.value].can(layer);
    }
    $("category").value = state.category;
    $("of-category").hidden = state.colours !== "rate" || categories.length < 2;
    $("no-rates").textContent = name === state.colours ? "" : "This sub-query has no rates; its colours show users.";
    showList(colours.list?.(layer));
    buildLegend();
    repaint();
  }
  function showList(list) {
    $("cells").hidden = !list;
    if (!list) return;
    const [title, unit, rows] = list;
    $("cells").querySelector("h2").replaceChildren(`${title} `, h("small", null, unit));
    $("cells").querySelector("ol").replaceChildren(...rows.map((row) => h("li", null, row)));
  }
  function setColours(name, category = state.category) {
    if (!Object.hasOwn(COLOURS, name) || (name === "rate" && !rated)) return;
    dissolveFrom();
    Object.assign(state, { colours: name, category: clamp(Math.round(Number(category)) || 0, 0, Math.max(categories.length - 1, 0)) });
    dress(state.layer);
  }
  for (const radio of document.querySelectorAll("[name=colours]")) {
    radio.closest("label").hidden = radio.value === "rate" && !rated;
    radio.addEventListener("change", () => setColours(radio.value));
  }
  $("category").append(...categories.map((_, i) => h("option", { value: i }, nameOf(i))));
  $("category").addEventListener("change", (event) => setColours("rate", event.target.value));
  KEYS.c = () => {
    const names = Object.keys(COLOURS).filter((name) => COLOURS[name].can(layers[state.layer]));
    setColours(names[(names.indexOf(state.colours) + 1) % names.length]);
  };

  // ---------------------------------------------------------------- the value under the pointer

  /** What the map says of the node at a place: a value, its margin, and rows of facts. What the colours show comes first. */
  function tipWords(layer, spot, lon, lat) {
    const cell = describe(layer, spot.i);
    const say = sayOf(layer);
    const users = (value) => (layer.deviations && cell.margin < 1 ? significant(value, 2) : whole(value));
    const share = cell.share < 0.9995 ? ` less its finer cells, ${percent(cell.share)} of it` : "";
    const dropped = layer.combined && cell.count === 0 ? say.dropped() : null; // at most how many users, where that is known
    const calibrated = cell.high !== null; // the intervals of cells.parquet; merged cells and single sub-queries have none
    const most = Math.max(dropped ?? (calibrated ? cell.high : cell.count + cell.margin), 0);
    const interval = calibrated ? `${users(cell.low)} to ${users(cell.high)} users at 95%` : `${users(cell.count)} ± ${users(cell.margin)} at 95%`;
    const spread = calibrated ? `, ${interval}` : ` ± ${users(cell.margin)}`;
    const why = dropped === null ? `${say.unclear}: ${interval}` : "not kept: not among the largest noisy counts";
    const value = cell.lost ? `no more than about ${users(most)} users` : `about ${users(cell.count)} users`;
    const margin = cell.lost ? why : calibrated ? `${interval}, for this cell by itself` : `± ${users(cell.margin)} at 95%, ${say.source}`;
    const name = shown(layer);
    const rate = layer.rates && rateWords(layer, spot.i, state.category);
    const rows = [
      ["Density", cell.lost ? `below about ${significant(most / cell.km2)} per km²` : `${significant(cell.density)} per km²`],
      ["Cell", `${metres(cell.widthMetres)} × ${metres(cell.heightMetres)}${share}`],
      ["Name", `${cell.cell_id}, depth ${cell.level} of ${depth}`],
      ["Place", place(lon, lat, placeDigits)],
    ];
    if (name === "rate") return { value: rate ?? "rate unknown", margin: rate ? RATE_LEVEL : NO_RATE, rows: [["What", shareOf(state.category)], ["Users", `${value}${cell.lost ? "" : spread}`], ...rows] };
    if (layer.rates) rows.unshift(["Rate", `${nameOf(state.category)}: ${rate ?? NO_RATE}`]);
    if (name === "users") return { value, margin, rows };
    return { value: cell.lost ? "may be nobody" : `known to within ${percent(cell.margin / cell.count)}`, margin: `${value}${cell.lost ? "" : spread}${calibrated && !cell.lost ? "" : " at 95%"}`, rows };
  }
