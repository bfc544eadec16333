// The page of moments: the answer in large type, and all its parts put together.

  const [answer] = data.statistics;
  const mapped = Boolean(data.layers);
  const shortColumn = column.length > 60 ? `${column.slice(0, 59)}\u2026` : column;

  $("answer").replaceChildren(...(answer ? [h("span", { class: "of" }, `${answer.title} of ${shortColumn}`), h("b", null, answer.value), h("span", { class: "margin" }, `from ${answer.low} to ${answer.high}`, h("small", null, "95 times in 100"))] : [h("b", null, "Nothing was published")]));
  $("others").append(...data.statistics.slice(1).map((one) => h("div", null, h("dt", null, one.title), h("dd", null, one.value, h("small", null, `${one.low} to ${one.high}`)))));

  showHeader(isNumber(clients) && bitCount !== null ? `${answer?.title ?? "Moments"} of ${shortColumn}, from ${gave} of each of ${large(clients)} clients` : $("heading").textContent, [
    budgetChip(),
    isNumber(form.bits) ? ["Values", `${whole(form.bits)} bits${form.signed === "split" ? " and a sign" : ""}`] : null,
    data.cells || data.groups.length ? [mapped ? "Cells" : "Groups", whole((data.cells ?? data.groups[0]).name.length)] : null,
  ].filter(Boolean));
  showMeter();
  $("pledge").textContent = pledge();
  showReport([
    statisticTable(),
    promise(),
    h("div", { class: "columns" }, reading(), making()),
    roundTable(),
  ].filter(Boolean), mapped ? { region: `${region.west}, ${region.south}, ${region.east}, ${region.north}`, "grid depth": depth } : {});
  const chartHandles = bitChart();
  const tableHandles = data.groups.length && data.groups[0].name.length ? groupTable(mapped ? "cell" : "group") : null;
  window.sfumato = Object.assign(mapped ? openCells() : {}, { bits: chartHandles, groups: tableHandles, statistics: data.statistics });
