// The map of a model of range queries: painted part by part, with the square that is asked about on top.

  const LOOK = { first: 0, least: 0, ground: null, hatched: false, swatch: PAINT.css[1][120] };
  const PLAY = "Play";
  const TOP = data.top;
  const KNEE = TOP / 150; // below it the scale is linear, above it logarithmic
  const clipped = parts.density.some((density) => density > 1.001 * TOP);
  const shadeOf = (density) => clamp(Math.log1p(Math.max(density, 0) / KNEE) / Math.log1p(TOP / KNEE), 0, 1);
  parts.shade = Uint8Array.from(parts.density, (density) => Math.round(255 * shadeOf(density)));
  parts.order = Uint32Array.from({ length: parts.n }, (_, i) => i).sort((a, b) => parts.lost[a] - parts.lost[b] || parts.shade[a] - parts.shade[b]);
  Object.assign(layers[0], { n: 0, maxLevel: 0 }); // no quadtree: see drawParts

  /** Round densities and where they stand on the scale, as [share, text], no two closer than `room`. */
  function legendTicks(room) {
    const ticks = [[0, "0"]];
    const end = clipped ? 1 - 1.5 * room : 0.95;
    for (let power = Math.floor(Math.log10(KNEE)); power <= Math.log10(TOP); power++) {
      for (const density of [10 ** power, 3 * 10 ** power]) {
        const share = shadeOf(density);
        if (density < TOP && share < end && share - ticks[ticks.length - 1][0] > room) ticks.push([share, significant(density)]);
      }
    }
    return clipped ? [...ticks, [1, `\u2265 ${significant(TOP, 2)}`]] : ticks;
  }

  // ---------------------------------------------------------------- words

  /** Users and their error with the digits that the error leaves them, and words for both. */
  function wordsOf({ users, stddev, inside }) {
    if (inside === 0) return { users: "0", margin: "", note: "This square lies outside the region, where nothing was counted." };
    const ten = stddev > 0 ? 10 ** Math.floor(Math.log10(stddev)) : 1;
    const step = Math.max(stddev < 3 * ten ? ten / 10 : ten, users >= 10 || stddev >= 10 ? 1 : 0.1);
    const [about, give] = [users, stddev].map((value) => significant(Math.round(value / step) * step, 12));
    const share = inside < 1 - 1e-9 ? `Of this square, ${percent(clamp(inside, 0.001, 0.999))} lies in the region; the answer is of that part.` : "";
    return { users: about, margin: `give or take ${give} (68%)`, note: share, give };
  }
  const told = ({ users, margin, note }) => `About ${users} users${margin && `, ${margin}`}. ${note}`;

  // ---------------------------------------------------------------- painting

  const DASHES = [5, 4]; // CSS pixels
  let paintedFor = null;
  const SHEET = 2 ** RASTER_BITS; // pixels a side of the map as a bitmap

  function paintParts() {
    if (paintedFor === state.fade) return;
    paintedFor = state.fade;
    const pixels = new Uint32Array(SHEET * SHEET);
    const at = (edge) => Math.round((edge / SIDE) * SHEET);
    for (let i = 0; i < parts.n; i++) {
      const [left, top] = [at(parts.x0[i]), at(parts.y0[i])];
      const right = Math.max(at(parts.x1[i]), left + 1);
      const colour = PAINT.words[state.fade ? parts.lost[i] : 0][parts.shade[i]];
      for (let row = top; row < Math.max(at(parts.y1[i]), top + 1) && row < SHEET; row++) pixels.fill(colour, row * SHEET + left, row * SHEET + Math.min(right, SHEET));
    }
    bitmap.sheet.width = bitmap.sheet.height = SHEET;
    bitmap.ctx.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), SHEET, SHEET), 0, 0);
  }
  /** Calls visit(i, x0, y0, x1, y1) with whole device pixels for every part in sight, by colour. */
  function eachPartInSight(f, visit) {
    const [across, down] = [f.w / SIDE, f.h / SIDE];
    for (const i of parts.order) {
      const x0 = Math.round(f.left + parts.x0[i] * across);
      const x1 = Math.round(f.left + parts.x1[i] * across);
      if (x1 < 0 || x0 > canvas.width) continue;
      const y0 = Math.round(f.top + parts.y0[i] * down);
      const y1 = Math.round(f.top + parts.y1[i] * down);
      if (y1 >= 0 && y0 <= canvas.height) visit(i, Math.max(x0, -9), Math.max(y0, -9), Math.min(x1, canvas.width + 9), Math.min(y1, canvas.height + 9));
    }
  }
  function drawOutlines(f) {
    ctx.fillStyle = "rgba(255,255,255,.22)";
    const line = Math.max(1, Math.round(size.dpr * 0.75));
    eachPartInSight(f, (_, x0, y0, x1, y1) => {
      if (x1 - x0 < 4 * line || y1 - y0 < 4 * line) return; // finer than the eye
      ctx.fillRect(x0, y0, x1 - x0, line);
      ctx.fillRect(x0, y0, line, y1 - y0);
    });
  }

  /** The square's corners in CSS pixels. */
  const onScreen = (box) => [toScreen(box.x0 / SIDE, box.y0 / SIDE), toScreen(box.x1 / SIDE, box.y1 / SIDE)];
  function strokeBox(box, dashes, white) {
    const [[left, top], [right, bottom]] = onScreen(box).map((corner) => corner.map((edge) => edge * size.dpr));
    ctx.setLineDash(dashes.map((length) => length * size.dpr));
    for (const [line, colour] of [[3.5, "rgba(0,0,0,.65)"], [1.6, white]]) {
      ctx.lineWidth = line * size.dpr;
      ctx.strokeStyle = colour;
      ctx.strokeRect(left, top, right - left, bottom - top);
    }
    ctx.setLineDash([]);
  }
  /** The square, and dashed what of it lies beyond the region. */
  function strokeSquare(square) {
    const box = boxOf(square);
    const within = withinRegion(box);
    if (areaOf(within) < areaOf(box)) strokeBox(box, DASHES, "#fff");
    if (areaOf(within) > 0) strokeBox(within, [], "#fff");
  }
  /** The answer beside the square, so that a finger that draws it can see it. */
  function labelSquare(square) {
    const words = wordsOf(ask(square));
    const text = words.margin ? `${words.users} \u00b1 ${words.give}` : words.users;
    const [[left, top], [right, bottom]] = onScreen(boxOf(square));
    if (right < 0 || left > size.w || bottom < 0 || top > size.h) return;
    ctx.save();
    ctx.scale(size.dpr, size.dpr);
    ctx.font = `15px ${getComputedStyle(document.body).fontFamily}`;
    const wide = ctx.measureText(text).width + 18;
    const x = clamp((left + right) / 2 - wide / 2, 6, Math.max(size.w - wide - 6, 6));
    const y = top > 36 ? top - 32 : bottom < size.h - 36 ? bottom + 8 : 40;
    ctx.fillStyle = "rgba(16,14,21,.92)";
    ctx.beginPath();
    ctx.roundRect(x, y, wide, 25, 7);
    ctx.fill();
    ctx.fillStyle = "#f1ece4";
    ctx.textAlign = "left";
    ctx.fillText(text, x + 9, y + 17.5);
    ctx.restore();
  }

  function drawParts(_, f) {
    if (f.w <= 2 * SHEET) {
      paintParts();
      blit(ctx, bitmap, SHEET, f);
    } else {
      let colour = "";
      eachPartInSight(f, (i, x0, y0, x1, y1) => {
        const next = PAINT.css[state.fade ? parts.lost[i] : 0][parts.shade[i]];
        if (next !== colour) ctx.fillStyle = colour = next;
        ctx.fillRect(x0, y0, x1 - x0, y1 - y0);
      });
    }
    if (state.grid) drawOutlines(f);
    const point = previewed();
    if (point) strokeBox(boxOf(squareAt(...point)), DASHES, "rgba(255,255,255,.6)");
    strokeSquare(state.square);
    labelSquare(state.square);
  }
  drawCells = drawParts; // this map's parts are no quadtree
