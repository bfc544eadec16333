// Asking: a square drawn on the map, put there by a click or a key, or typed in; and what it holds.

  const DIGITS = 6; // of a centre, in degrees: a tenth of a metre
  const [LEAST, MOST] = [0.001, 40_030_000]; // metres, as the library has it
  Object.assign(state, { square: data.start, drag: "draw" });

  const roundTo = (value, digits) => Number(value.toFixed(digits));
  const rangeOf = { x: [-180, 180, "A longitude lies in \u2212180 to 180 degrees."], y: [-90, 90, "A latitude lies in \u221290 to 90 degrees."], size: [LEAST, MOST, "A side is a number of metres above 0."] };
  const problemOf = (square) => Object.keys(rangeOf).find((name) => !(square[name] >= rangeOf[name][0] && square[name] <= rangeOf[name][1]));
  /** A square of the present size round a place, in 0..1 from the north-west. */
  const squareAt = (u, v, metresWide = state.square.size) => ({
    x: clamp(roundTo(region.west + u * width, DIGITS), -180, 180), y: clamp(roundTo(region.north - v * height, DIGITS), -90, 90),
    size: clamp(Number(metresWide.toPrecision(3)), LEAST, MOST),
  });
  /** Where a click would put the square: under the pointer, or at the crosshair. */
  const previewed = () => (drawing || state.drag === "move" ? null : state.hover ? toMap(...state.hover) : state.keyboard ? [view.cx, view.cy] : null);

  // ---------------------------------------------------------------- the answer

  const FIELDS = { x: $("x"), y: $("y"), size: $("side") };
  function setSquare(square, typed = false) {
    state.square = square;
    tipOf = null;
    const answer = ask(square);
    const words = wordsOf(answer);
    $("users").replaceChildren(`about ${words.users} `, h("small", null, words.users === "1" ? "user" : "users"));
    $("margin").textContent = words.margin;
    $("note").textContent = [words.note, model.kind === "raster" ? `On this page, answers add up a raster of ${plural(parts.n, "cell")}; the model itself may answer a little otherwise.` : ""].filter(Boolean).join(" ");
    if (!typed) for (const [name, field] of Object.entries(FIELDS)) field.value = square[name];
    for (const field of Object.values(FIELDS)) field.removeAttribute("aria-invalid");
    $("wrong").hidden = true;
    request();
    return answer;
  }
  /** Reads the square's answer out once it rests. */
  function speakSquare() {
    clearTimeout(speaking);
    speaking = setTimeout(() => { $("spoken").textContent = told(wordsOf(ask(state.square))); }, 350);
  }
  function readFields() {
    const square = Object.fromEntries(Object.entries(FIELDS).map(([name, field]) => [name, field.value.trim() === "" ? NaN : Number(field.value)]));
    const problem = problemOf(square);
    if (problem === undefined) {
      setSquare(square, true);
      speakSquare();
      return;
    }
    for (const [name, field] of Object.entries(FIELDS)) field.setAttribute("aria-invalid", String(name === problem));
    $("wrong").textContent = `${rangeOf[problem][2]} The answer above is of the last square.`;
    $("wrong").hidden = false;
  }
  for (const field of Object.values(FIELDS)) field.addEventListener("input", readFields);
  $("square").addEventListener("submit", (event) => event.preventDefault());

  /** What the map says of the place under the pointer, or at the crosshair: the answer that a square there would have. */
  function spotAt(_, u, v) {
    const shown = state.keyboard || state.drag === "draw";
    return shown && !drawing && u >= 0 && u <= 1 && v >= 0 && v <= 1 ? { level: 30, x: Math.floor(u * 2 ** 30), y: Math.floor(v * 2 ** 30) } : null;
  }
  function tipWords(_, spot, lon, lat) {
    const words = wordsOf(ask({ x: lon, y: lat, size: state.square.size }));
    return { value: `about ${words.users} users`, margin: words.margin, rows: [["Square", `${metres(state.square.size)} wide, round here`], ["Place", place(lon, lat, placeDigits)]] };
  }

  // ---------------------------------------------------------------- drawing

  let drawing = null; // {id, centre, start, at, before}: the pointer that draws a square, and the square before
  const draws = (event) => (state.drag === "draw") !== event.shiftKey;
  const reach = ([ax, ay], [bx, by]) => Math.max(Math.abs(ax - bx), Math.abs(ay - by)); // pixels
  const metresPerPixel = () => groundWidth / (size.fitW * view.scale);

  // These listeners hear of an event before the map's own do.
  $("map").addEventListener("pointerdown", (event) => {
    if (event.target !== canvas || event.button) return;
    if (drawing) { // a second finger: both move the map
      pointers.set(drawing.id, drawing.at);
      setSquare(drawing.before);
      drawing = null;
      return;
    }
    if (pointers.size || !draws(event)) return;
    event.stopPropagation();
    canvas.setPointerCapture(event.pointerId);
    const start = at(event);
    drawing = { id: event.pointerId, centre: toMap(...start), start, at: start, before: state.square };
    Object.assign(state, { hover: null, keyboard: false });
    setSquare(squareAt(...drawing.centre));
  }, true);
  $("map").addEventListener("pointermove", (event) => {
    if (drawing?.id !== event.pointerId) return;
    event.stopPropagation();
    drawing.at = at(event);
    const half = reach(drawing.start, drawing.at);
    setSquare(squareAt(...drawing.centre, half > 4 ? 2 * half * metresPerPixel() : drawing.before.size));
  }, true);
  for (const type of ["pointerup", "pointercancel"]) $("map").addEventListener(type, (event) => {
    if (drawing?.id !== event.pointerId) return;
    event.stopPropagation();
    if (type === "pointercancel") setSquare(drawing.before);
    drawing = null;
    speakSquare();
    request();
  }, true);

  function setDrag(drag) {
    state.drag = drag;
    for (const radio of document.querySelectorAll("[name=drag]")) radio.checked = radio.value === drag;
    $("map").classList.toggle("draws", drag === "draw");
    request();
  }
  for (const radio of document.querySelectorAll("[name=drag]")) radio.addEventListener("change", () => setDrag(radio.value));

  const scaled = (factor) => setSquare({ ...state.square, size: clamp(Number((state.square.size * factor).toPrecision(3)), LEAST, MOST) });
  Object.assign(KEYS, {
    Enter: () => { setSquare(squareAt(goal.cx, goal.cy)); }, "[": () => { scaled(1 / 1.25); }, "]": () => { scaled(1.25); },
    d: () => setDrag(state.drag === "draw" ? "move" : "draw"),
  });

  function lookup(lon, lat) {
    return ask({ x: lon, y: lat, size: state.square.size });
  }
  const showLayer = () => "The released density";
