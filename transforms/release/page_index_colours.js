// The two maps, a night's and the change: their colours and legends.

  const NIGHT = coloursOf(data.palette).map(lighten);
  // Blue for less, orange for more, the ground's colour for the same; apart for every eye.
  const CHANGE = coloursOf("c4ecff7cc4fb3f8fe02a62b024406f1d263d1c1a2242261e7a3617bb5213ec7d25fbb25effe3b0");
  const FADED = CHANGE.map((colour) => colour.map((part, c) => Math.round(0.3 * part + 0.7 * [34, 32, 40][c])));
  const KNEES = { night: 150, change: 12 }; // below the top over it a scale is linear, above it logarithmic
  const RATIOS = 2; // doublings at a scale's end
  const bent = (share, knee) => Math.log1p(Math.max(share, 0) * knee) / Math.log1p(knee);

  const panels = Object.fromEntries(["night", "change"].map((name) => {
    const card = document.querySelector(`[data-card=${name}]`);
    const find = (selector) => card.querySelector(selector);
    const canvas = find("canvas");
    return [name, {
      name, canvas, ctx: canvas.getContext("2d", { alpha: false }), frame: find(".frame"), absent: find(".absent"), scale: find(".scale"), tip: find(".tip"),
      ramp: find(".ramp"), ticks: find(".ticks"), legend: find(".colours-of"), sheet: document.createElement("canvas"), blocks: null, size: null,
    }];
  }));

  // ---------------------------------------------------------------- colours

  /** Paints one pixel a pixel of the map; `colourOf` gives [red, green, blue] of pixel z. */
  function fillSheet(panel, bits, colourOf) {
    const side = 2 ** bits;
    const paint = new Uint32Array(side * side);
    const order = orderOf(bits);
    for (let z = 0; z < paint.length; z++) {
      const [r, g, b] = colourOf(z);
      paint[order[z]] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    }
    panel.sheet.width = panel.sheet.height = side;
    panel.sheet.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(paint.buffer), side, side), 0, 0);
  }
  function paintNight(map) {
    const side = 2 ** map.bits;
    const area = Float64Array.from({ length: side }, (_, row) => squareKilometres(map.region, map.bits, row));
    const order = orderOf(map.bits);
    fillSheet(panels.night, map.bits, (z) => NIGHT[Math.round(255 * Math.min(bent((100 * map.share[z]) / area[order[z] >> map.bits] / map.top, KNEES.night), 1))]);
    panels.night.blocks = map.cells ??= compare(map, map);
    const { ramp } = panels.night;
    ramp.style.background = `linear-gradient(90deg, ${NIGHT.filter((_, i) => i % 15 === 0).map(rgb).join(",")})`;
    const ticks = [[0, "0"]];
    for (let power = Math.floor(Math.log10(map.top / KNEES.night)); power <= Math.log10(map.top); power++) {
      for (const value of [10 ** power, 3 * 10 ** power]) {
        const at = bent(value / map.top, KNEES.night);
        if (value < map.top && at < 0.8 && at - ticks.at(-1)[0] > 0.1) ticks.push([at, significant(value)]);
      }
    }
    showTicks(panels.night, [...ticks, [1, `≥ ${significant(map.top, 2)}`]]);
  }
  const rgb = ([r, g, b]) => `rgb(${r},${g},${b})`;
  const showTicks = (panel, ticks) => panel.ticks.replaceChildren(...ticks.map(([at, text], i) => {
    const tick = h("span", i === 0 ? { class: "start" } : at === 1 ? { class: "end" } : null, text);
    tick.style.left = `${100 * at}%`;
    return tick;
  }));

  /** Where a block's colour lies between the scale's ends, -1 and 1. */
  function shadeOf(blocks, i, unit) {
    if (unit === "ratio") {
      const [before, after] = [blocks.before[i], blocks.after[i]];
      return before === after ? 0 : clamp(Math.log2(Math.max(after, 1e-300) / Math.max(before, 1e-300)) / RATIOS, -1, 1);
    }
    const density = (100 * blocks.difference[i]) / squareKilometres(blocks.region, blocks.level[i], blocks.y[i]);
    return Math.sign(density) * Math.min(bent(Math.abs(density) / blocks.top, KNEES.change), 1);
  }
  /** The end of the scale of points per km²: of all that changed for certain, 2% lies where it changed more. */
  function changeTop(blocks) {
    const found = [];
    for (const certain of [true, false]) {
      for (let i = 0; i < blocks.n; i++) {
        const size = Math.abs(blocks.difference[i]);
        if (size && (!certain || !blocks.lost[i])) found.push([(100 * size) / squareKilometres(blocks.region, blocks.level[i], blocks.y[i]), size]);
      }
      if (found.length) break;
    }
    found.sort(([a], [b]) => a - b);
    let left = 0.98 * found.reduce((sum, [, size]) => sum + size, 0);
    const top = (found.find(([, size]) => (left -= size) <= 0) ?? [1])[0];
    const digit = 10 ** (Math.floor(Math.log10(top)) - 1);
    return Math.ceil(top / digit - 1e-9) * digit;
  }
  function paintChange(blocks, unit) {
    blocks.top ??= changeTop(blocks);
    const colour = blocks.difference.map((_, i) => (blocks.lost[i] ? FADED : CHANGE)[Math.round(127.5 * (1 + shadeOf(blocks, i, unit)))]);
    fillSheet(panels.change, blocks.bits, (z) => colour[blocks.of[z]]);
    panels.change.blocks = blocks;
    panels.change.ramp.style.background = `linear-gradient(90deg, ${CHANGE.filter((_, i) => i % 15 === 0).map(rgb).join(",")})`;
    const ticks = [];
    if (unit === "ratio") for (const [power, text] of [[-2, "¼ or less"], [-1, "½"], [0, "same"], [1, "2×"], [2, "4× or more"]]) ticks.push([(1 + power / RATIOS) / 2, text]);
    else {
      const near = niceStep(blocks.top / 12);
      const far = `${significant(blocks.top, 2)} or more`;
      const at = bent(near / blocks.top, KNEES.change) / 2;
      ticks.push([0, `\u2212${far}`], [0.5 - at, `\u2212${significant(near)}`], [0.5, "0"], [0.5 + at, `+${significant(near)}`], [1, `+${far}`]);
    }
    showTicks(panels.change, ticks);
    $("change-unit").textContent = unit === "ratio" ? "Share of the users in B over that in A" : "Percentage points of the users per km², gained or lost";
    $("swatch").style.background = `linear-gradient(90deg, ${[60, 128, 200].map((i) => rgb(FADED[i])).join(",")})`;
  }
