// The timeline: a bar a night, users above and epsilon below, missing dates, and what the ledger's limits had left.

  const nights = data.nights.map((values) => Object.fromEntries(data.names.map((name, i) => [name, values[i]])));
  const DAY = 86400e3;
  const dayOf = (date) => Date.parse(`${date}T00:00:00Z`) / DAY;
  const dateOf = (day) => new Date(day * DAY).toISOString().slice(0, 10);
  const spelt = (day, style) => new Date(day * DAY).toLocaleDateString("en-GB", { timeZone: "UTC", ...style });
  const shortDate = (date) => spelt(dayOf(date), { day: "numeric", month: "short", year: "numeric" });
  const longDate = (date) => spelt(dayOf(date), { weekday: "long", day: "numeric", month: "long", year: "numeric" });
  const [firstDay, lastDay] = [dayOf(nights[0].date), dayOf(nights.at(-1).date)];
  const days = lastDay - firstDay + 1;
  const spending = data.spending.map((limit) => ({ ...limit, spent: limit.spent.map(([day, spent]) => [firstDay + day, spent]) })); // days, as dayOf counts
  const placeOf = new Map(nights.map((night, i) => [night.date, i]));
  const charged = (night) => `ε ${significant(night.epsilon)}${night.delta ? `, δ ${tiny(night.delta)}` : ""}`;
  const counted = (night) => (isNumber(night.users) ? `${large(night.users)} users` : "users unknown");

  const TOP = 26; // room for the pins A and B
  const USERS = 92; // heights in pixels
  const EPSILON = 26;
  const BASE = TOP + USERS;
  const STRIP = 46; // for each limit
  const usersTop = niceTop(Math.max(...nights.map((night) => night.users ?? 0), 1));
  const epsilonTop = Math.max(...nights.map((night) => night.epsilon), 1e-12);
  const time = { hover: null, step: 8 }; // the day under the pointer, pixels a day

  /** The end of an axis: a round number not far above a value. */
  function niceTop(value) {
    const step = niceStep(value / 8);
    return Math.ceil(value / step - 1e-9) * step;
  }
  const xOf = (day) => (day - firstDay) * time.step;
  const barOf = (i) => xOf(dayOf(nights[i].date));

  function drawTime() {
    const room = $("scroll").clientWidth;
    if (!room) return;
    const least = matchMedia("(max-width: 820px)").matches ? 5 : 2.7;
    time.step = clamp(room / days, least, 44);
    const wide = Math.max(time.step * days, room);
    const tall = BASE + EPSILON + 24 + spending.length * STRIP;
    const gap = Math.max(0.22 * time.step, 0.6);
    const picture = svg("svg", { width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}`, "aria-hidden": "true" });
    for (const share of [0.5, 1]) picture.append(svg("path", { class: "rule", d: `M0 ${BASE - share * USERS}H${wide}` }));
    for (let day = firstDay; day <= lastDay; day++) {
      const i = placeOf.get(dateOf(day));
      const [x, w] = [xOf(day) + gap / 2, Math.max(time.step - gap, 1)];
      if (i === undefined) picture.append(svg("rect", { class: "gap", "data-gap": dateOf(day), x: xOf(day), y: TOP, width: time.step, height: USERS + EPSILON + 4 }));
      else picture.append(bar(nights[i], x, w));
    }
    picture.append(svg("path", { class: "base", d: `M0 ${BASE + 1}H${wide}` }), monthTicks(), ...spending.map((limit, number) => strip(limit, number, wide)), svg("g", { id: "marks" }));
    $("plot").replaceChildren(picture);
    // The names of limits stay in sight when the timeline scrolls.
    $("axis").replaceChildren(...[[1, large(usersTop)], [0.5, large(usersTop / 2)], [0, "users"]].map(([share, text]) => placed(h("span", null, text), BASE - share * USERS - (share ? 0 : 10))),
      placed(h("span", null, "ε"), BASE + EPSILON / 2 + 2),
      ...spending.map((limit, number) => placed(h("span", { class: "limit" }, limit.days === 1 ? "a day" : `${limit.days} days`), stripTop(number) + 21)));
    markTime();
  }
  const placed = (element, y) => {
    element.style.top = `${y}px`;
    return element;
  };
  function bar(night, x, w) {
    const kind = `night${night.map ? "" : " mapless"}${night.safe ? "" : " unsafe"}`;
    const high = isNumber(night.users) ? Math.max((night.users / usersTop) * USERS, 1.5) : 14;
    const low = Math.max((night.epsilon / epsilonTop) * EPSILON, 1.5);
    return svg("g", { class: kind, "data-date": night.date },
      svg("rect", { class: "users", x, y: BASE - high, width: w, height: high }), !isNumber(night.users) && w > 9 && svg("text", { x: x + w / 2, y: BASE - 3 }, "?"), svg("rect", { class: "epsilon", x, y: BASE + 3, width: w, height: low }));
  }
  function monthTicks() {
    const ticks = [];
    let last = -1e9;
    for (let day = firstDay; day <= lastDay; day++) {
      const date = new Date(day * DAY);
      const due = days > 70 ? date.getUTCDate() === 1 : time.step * 7 > 70 ? date.getUTCDay() === 1 : date.getUTCDate() % 14 === 1;
      if (!due && day !== firstDay) continue;
      const x = xOf(day);
      const text = days > 70 ? spelt(day, date.getUTCMonth() === 0 || day === firstDay ? { month: "short", year: "numeric" } : { month: "short" }) : spelt(day, { day: "numeric", month: "short" });
      if (x - last < 58 || xOf(lastDay + 1) - x < 24) continue;
      last = x;
      ticks.push(svg("path", { class: "tick", d: `M${x + 0.5} ${BASE + EPSILON + 4}v6` }), svg("text", { x: x + 3, y: BASE + EPSILON + 18 }, text));
    }
    return svg("g", { class: "months" }, ticks);
  }
  const stripTop = (number) => BASE + EPSILON + 24 + number * STRIP;
  /** What was spent in the window that ends on each day, below the limit's line. */
  function strip(limit, number, wide) {
    const [top, high] = [stripTop(number) + 12, STRIP - 20];
    const y = (spent) => top + high - (Math.min(spent, limit.epsilon * 1.15) / limit.epsilon) * high;
    const known = limit.spent.filter(([day]) => day >= firstDay && day <= lastDay);
    const steps = known.map(([day, spent]) => `V${y(spent).toFixed(1)}H${(xOf(day) + time.step).toFixed(1)}`).join("");
    const start = known.length ? xOf(known[0][0]) : 0;
    return svg("g", { class: "strip", "data-days": limit.days },
      known.length && svg("path", { class: "spent", d: `M${start} ${top + high}${steps}V${top + high}Z` }),
      svg("path", { class: "rule", d: `M0 ${top + high}H${wide}` }), svg("path", { class: "most", d: `M0 ${top}H${wide}` }),
      svg("text", { x: wide - 2, y: top - 4, class: "end" }, `at most ε ${significant(limit.epsilon, 4)}`));
  }

  const PIN = 10; // pixels, the radius
  /** Where the heads of the pins at two places lie: side by side where the places are nearer, and in sight. */
  function pinHeads(a, b, wide) {
    const held = (x, least, most) => clamp(x, least + PIN, most - PIN);
    if (a === null) return { b: held(b, 0, wide) };
    const gap = Math.max(2 * PIN + 1 - Math.abs(a - b), 0) / 2;
    const [left, right] = [Math.min(a, b) - gap, Math.max(a, b) + gap];
    const shift = Math.max(PIN - left, 0) - Math.max(right - wide + PIN, 0);
    return a < b ? { a: left + shift, b: right + shift } : { a: right + shift, b: left + shift };
  }
  /** Shows where A and B stand, and what the pointer is on. */
  function markTime() {
    const marks = $("marks");
    if (!marks) return;
    const wide = Number($("plot").firstChild.getAttribute("width"));
    const middle = (night) => barOf(placeOf.get(night.date)) + time.step / 2;
    const heads = pinHeads(chosen.a && middle(chosen.a), middle(chosen.b), wide);
    const pin = (night, letter) => night && svg("g", { class: `pin ${letter}` }, svg("path", { d: `M${heads[letter]} 20L${middle(night)} ${TOP - 2}V${BASE + EPSILON + 3}` }),
      svg("circle", { cx: heads[letter], cy: 12, r: PIN }), svg("text", { x: heads[letter], y: 16 }, letter.toUpperCase()));
    const at = time.hover !== null && svg("rect", { class: "hover", x: xOf(time.hover), y: TOP - 4, width: Math.max(time.step, 2), height: USERS + EPSILON + 8 });
    marks.replaceChildren(...[at, pin(chosen.a, "a"), pin(chosen.b, "b")].filter(Boolean));
    for (const bar of $("plot").querySelectorAll(".night.chosen")) bar.classList.remove("chosen");
    for (const night of [chosen.a, chosen.b]) if (night) $("plot").querySelector(`[data-date="${night.date}"]`).classList.add("chosen");
    const words = `${longDate(chosen.b.date)}: ${counted(chosen.b)}, ${charged(chosen.b)}, ${chosen.b.map ? "with a map" : `${chosen.b.job}, no map`}${chosen.a ? `; compared with ${shortDate(chosen.a.date)}` : ""}`;
    for (const [name, value] of [["aria-valuemax", nights.length], ["aria-valuenow", placeOf.get(chosen.b.date) + 1], ["aria-valuetext", words]]) $("time").setAttribute(name, value);
    showTimeTip();
  }
  function showTimeTip() {
    const tip = $("time-tip");
    tip.hidden = time.hover === null;
    if (tip.hidden) return;
    const date = dateOf(time.hover);
    const night = nights[placeOf.get(date)];
    const rows = night
      ? [["Job", `${night.job}${night.map ? "" : ", no map"}`], ["Starts from", night.warm_start], ["Noise", !night.safe && "known source: not private"], ["Release", night.release_id]]
      : [];
    for (const limit of spending) {
      const found = limit.spent.find(([day]) => day === time.hover);
      if (found) rows.push([limit.days === 1 ? "That day" : `${limit.days} days`, `ε ${significant(found[1], 4)} of ${significant(limit.epsilon, 4)} spent`]);
    }
    fillTip(tip, { value: longDate(date), margin: night ? `${counted(night)}, ${charged(night)}` : "no release of this date", rows: rows.filter(([, value]) => value) });
    const box = $("time").getBoundingClientRect();
    const px = xOf(time.hover) + time.step / 2 - $("scroll").scrollLeft + $("scroll").offsetLeft;
    tip.style.transform = `translate(${tipAt(px, tip.offsetWidth, box.width, 14)}px,${TOP}px)`;
  }
  function hoverTime(day) {
    if (time.hover === day) return;
    time.hover = day;
    markTime();
  }
  /** Brings B into sight where the timeline scrolls. */
  function scrollTime() {
    const x = barOf(placeOf.get(chosen.b.date));
    const box = $("scroll");
    if (x < box.scrollLeft + 20 || x > box.scrollLeft + box.clientWidth - 40) box.scrollLeft = x - box.clientWidth * 0.7;
  }

  function startTime(choose) {
    const dayAt = (event) => Math.floor((event.clientX - $("plot").getBoundingClientRect().left) / time.step) + firstDay;
    const nearest = (day) => nights.reduce((best, night) => (Math.abs(dayOf(night.date) - day) < Math.abs(dayOf(best.date) - day) ? night : best));
    const scroll = $("scroll");
    scroll.addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") hoverTime(clamp(dayAt(event), firstDay, lastDay)); });
    scroll.addEventListener("pointerleave", () => hoverTime(null));
    scroll.addEventListener("scroll", () => { if (time.hover !== null) showTimeTip(); }, { passive: true });
    scroll.addEventListener("click", (event) => choose(event.shiftKey ? { a: nearest(dayAt(event)) } : { b: nearest(dayAt(event)) }));
    $("time").addEventListener("blur", () => hoverTime(null));
    $("time").addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const which = event.shiftKey ? "a" : "b";
      const able = which === "a" ? nights.filter((night) => night.map) : nights;
      const at = able.indexOf(chosen[which] ?? chosen.b);
      const next = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, PageUp: at + 7, PageDown: at - 7, Home: 0, End: able.length - 1 }[event.key];
      if (event.key === "Escape") hoverTime(null);
      if (next === undefined || !able.length) return;
      event.preventDefault();
      const night = able[clamp(next, 0, able.length - 1)];
      time.hover = dayOf(night.date);
      choose({ [which]: night });
    });
  }
