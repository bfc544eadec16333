// What stands round the map: switches, legend, and the slider from layer to layer. A page with a map says what a layer
// is called (showLayer, PLAY).

  // ---------------------------------------------------------------- switches and the legend

  function setGrid(on) {
    state.grid = $("grid").checked = Boolean(on);
    request();
  }
  function setFade(on) {
    state.fade = $("fade").checked = Boolean(on);
    request();
  }
  $("grid").addEventListener("change", (event) => setGrid(event.target.checked));
  $("fade").addEventListener("change", (event) => setFade(event.target.checked));

  function buildLegend() {
    const ramp = Array.from({ length: 33 }, (_, i) => PAINT.css[0][Math.round(LOOK.first + ((255 - LOOK.first) * i) / 32)]);
    $("ramp").style.background = LOOK.ramp ?? `linear-gradient(90deg, ${ramp.join(",")})`;
    $("ticks").replaceChildren(...legendTicks(45 / Math.max($("ramp").clientWidth, 1)).map(([share, text]) => {
      const tick = h("span", share === 1 ? { class: "end" } : null, text);
      tick.style.left = `${100 * share}%`;
      return tick;
    }));
    $("swatch").style.background = LOOK.swatch;
  }

  // ---------------------------------------------------------------- from layer to layer

  const slider = $("slider");
  let playing = 0;

  /** Lets what is on the map fade into what comes next. */
  function dissolveFrom() {
    if (still.matches || moving()) return;
    const { sheet, ctx: pen } = offscreen();
    sheet.width = canvas.width;
    sheet.height = canvas.height;
    pen.drawImage(canvas, 0, 0);
    dissolve = { sheet };
  }
  function setLayer(index) {
    const next = clamp(Math.round(Number(index)) || 0, 0, layers.length - 1);
    if (next !== state.layer) dissolveFrom();
    state.layer = next;
    slider.value = next;
    slider.setAttribute("aria-valuetext", showLayer(next));
    request();
  }
  function play(on) {
    clearInterval(playing);
    playing = 0;
    $("play").setAttribute("aria-label", on ? "Pause" : PLAY);
    $("play-shape").setAttribute("d", on ? "M4.5 3h2v10h-2zM9.5 3h2v10h-2z" : "M5 3l8 5-8 5z");
    if (!on) return;
    if (state.layer >= layers.length - 1) setLayer(0);
    playing = setInterval(() => {
      setLayer(state.layer + 1);
      if (state.layer >= layers.length - 1) play(false);
    }, 1400);
  }
  const choose = (index) => {
    play(false);
    setLayer(index);
  };
  slider.max = layers.length - 1;
  slider.disabled = $("play").disabled = layers.length < 2;
  slider.addEventListener("input", () => choose(slider.value));
  $("play").addEventListener("click", () => play(!playing));

  // What a page with a map offers to scripts and tests, beside its own.
  const mapHandles = {
    layers, setLayer, setGrid, setFade, lookup,
    /** Shows `scale` times the whole region's size, centred on (cx, cy) in 0..1 from the north-west corner, at once. */
    zoomTo: (scale, cx, cy) => moveTo({ scale, cx, cy }, false),
    get layer() { return state.layer; },
    get view() { return { ...view }; },
    /** Canvas position, in CSS pixels, of a place in degrees. */
    project: (lon, lat) => toScreen((lon - region.west) / width, (region.north - lat) / height),
  };
  function openMap() {
    measure();
    setLayer(state.layer);
    new ResizeObserver(measure).observe(canvas);
  }
