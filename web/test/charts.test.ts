import { beforeAll, describe, expect, it, vi } from "vitest";
import { ChartFigure, type ChartOptions } from "../src/chart/figure";
import { barScale, BarRows } from "../src/products/bars";
import { shareAt } from "../src/products/curve";
import { bitChart, spreadChart } from "../src/products/moments";
import type { Bar, BarsBody, BitRow, CurveBody, MomentsBody, StatisticRow } from "../src/views";

beforeAll(() => {
  vi.stubGlobal("ResizeObserver", class {
    observe(): void { /* jsdom lays nothing out */ }
  });
});

const bar = (name: string, value: number, more: Partial<Bar> = {}): Bar => ({ name, value, low: value * 0.9, high: value * 1.1, share: null, parent: -1, level: 0, cut: false, users: null, ...more });
const bars = (rows: Bar[], reference: number | null = null): BarsBody => ({ kind: "bars", unit: "users", noun: "item", explanation: "", bars: rows, reference });

describe("rows of bars", () => {
  const tree = bars([bar("J", 90, { level: 1 }), bar("K", 100, { level: 1 }), bar("J09", 50, { level: 3, parent: 0 }), bar("J10", 40, { level: 3, parent: 0 }), bar("K35", 99, { level: 3, parent: 1 })]);
  const names = (rows: BarRows): string[] => rows.shown().map(([i, depth]) => `${" ".repeat(depth)}${rows.body.bars[i].name}`);

  it("show the finest level, ranked", () => {
    expect(names(new BarRows(tree))).toEqual(["K35", "J09", "J10"]);
  });
  it("unfold what extends a prefix, in the same order", () => {
    const rows = new BarRows(tree);
    rows.level = 1;
    expect(names(rows)).toEqual(["K", "J"]);
    rows.toggled.add(0);
    expect(names(rows)).toEqual(["K", "J", " J09", " J10"]);
    rows.by = "name";
    rows.down = false;
    expect(names(rows)).toEqual(["J", " J09", " J10", "K"]);
  });
  it("open at what a filter finds inside them, and keep what it finds by its own name whole", () => {
    const rows = new BarRows(tree);
    rows.level = 1;
    rows.filter = "j1";
    expect(names(rows)).toEqual(["J", " J10"]);
    rows.filter = "j";
    rows.toggled.add(0);
    expect(names(rows)).toEqual(["J", " J09", " J10"]);
    rows.filter = "zz";
    expect(names(rows)).toEqual([]);
  });
  it("are ranked by what is surely there, not by the estimate", () => {
    const rows = new BarRows(bars([bar("unsure", 100, { low: 10 }), bar("sure", 90, { low: 85 })]));
    expect(names(rows)).toEqual(["sure", "unsure"]);
    rows.down = false;
    expect(names(rows)).toEqual(["unsure", "sure"]);
  });
  it("rank whole items after prefixes of any length", () => {
    expect(new BarRows(bars([bar("whole", 1), bar("pre", 2, { level: 2 })])).levels).toEqual([2, 0]);
  });
});

describe("the scale of bars", () => {
  it("begins at 0 for counts and reaches over all intervals", () => {
    const { at, ticks } = barScale([bar("a", 100), bar("b", 10)], true, false);
    expect(at(0)).toBe(0);
    expect(at(110)).toBeCloseTo(1);
    expect(ticks).toEqual([0, 50, 100]);
  });
  it("is not set by one value that is poorly known", () => {
    const { at } = barScale([bar("a", 40, { low: 39, high: 41 }), bar("b", 42, { low: 41, high: 43 }), bar("c", 41, { low: -500, high: 500 })], false, false);
    expect(at(42) - at(40)).toBeGreaterThan(0.2);
  });
  it("spreads small counts where it is logarithmic", () => {
    const { at, ticks } = barScale([bar("a", 10_000), bar("b", 10)], true, true);
    expect(at(10)).toBeGreaterThan(0.05);
    expect(ticks).toEqual([10, 100, 1000, 10_000]);
  });
  it("holds for one value, and for none", () => {
    expect(Number.isFinite(barScale([bar("a", 5, { low: 5, high: 5 })], false, false).at(5))).toBe(true);
    expect(barScale([], true, false).ticks).toEqual([]);
  });
});

it("a share between points lies on the line between them, with its band", () => {
  const body = { value: [0, 10, 20], share: [0, 0.5, 1], low: [0, 0.4, 0.9], high: [0.1, 0.6, 1] } as CurveBody;
  expect(shareAt(body, 5)).toEqual([0.25, 0.2, 0.35]);
  expect(shareAt(body, 10)).toEqual([0.5, 0.4, 0.6]);
  expect([shareAt(body, -5)[0], shareAt(body, 99)[0]]).toEqual([0, 1]);
});

describe("charts of moments", () => {
  const mean: StatisticRow = { name: "Mean", value: 3, low: 2.9, high: 3.2, text: "3.0", range: "2.9 to 3.2" };
  it("show a deviation where there is one, within what values can be", () => {
    const body = { column: "km", limits: [0, 255], deviation: 4 } as MomentsBody;
    const chart = spreadChart(body, mean);
    expect(chart.x.domain).toEqual([0, 15]);
    expect(chart.marks.map((mark) => mark.kind)).toEqual(["band", "lying", "dots"]);
    expect(spreadChart({ ...body, deviation: null }, mean).marks.map((mark) => mark.kind)).toEqual(["lying", "dots"]);
  });
  it("mark bits that are empty or unknown", () => {
    const row = (share: number | null, dropped = false): BitRow => ({ quantity: "km", place: "1", share, low: share === null ? null : share - 0.1, high: share === null ? null : share + 0.1, reports: 9, dropped });
    const chart = bitChart([row(0.5), row(-0.05, true), row(null)], "km", { title: "", about: "", share: "Share", place: "adds to" });
    const [drawn] = chart.marks;
    expect(drawn.kind === "bars" && drawn.bars.map((one) => one[3])).toEqual(["s0", "dropped"]);
    expect(chart.marks.filter((mark) => mark.kind === "text")).toHaveLength(1);
    expect(chart.y.domain[0]).toBeLessThan(-0.15);
  });
});

describe("a chart figure", () => {
  const options: ChartOptions = {
    title: "Users by age", description: "Twelve bars.", x: { label: "age", domain: [0, 100] }, y: { label: "Users", domain: [0, 50] },
    marks: [{ kind: "bars", bars: [[0, 10, 25], [10, 20, 50]] }, { kind: "line", points: [[0, 0], [100, 50]] }, { kind: "upright", points: [[5, 20, 30]] }, { kind: "rule", x: 30, text: "50%: 30" }, { kind: "rule", x: 33, text: "60%: 33" }],
  };
  const made = (more: Partial<ChartOptions> = {}): { figure: ChartFigure; said: string[] } => {
    const said: string[] = [];
    return { figure: new ChartFigure(document.createElement("div"), { ...options, ...more }, { say: (text) => void said.push(text) }), said };
  };
  const number = (element: Element | null, name: string): number => Number(element?.getAttribute(name));

  it("has a title and a description, and no style that the policy would stop", () => {
    const { figure } = made();
    expect(figure.svg.querySelector("title")?.textContent).toBe("Users by age");
    expect(figure.svg.querySelector("desc")?.textContent).toBe("Twelve bars.");
    expect(figure.svg.querySelector("[style]")).toBeNull();
  });
  it("draws bars from the axis to their values", () => {
    const rows = [...made().figure.svg.querySelectorAll(".bar")];
    expect(number(rows[1], "height")).toBeCloseTo(2 * number(rows[0], "height"), 1);
    expect(number(rows[1], "x")).toBeCloseTo(number(rows[0], "x") + number(rows[0], "width"), 1);
  });
  it("letters no rule over another one's letters", () => {
    const words = [...made().figure.svg.querySelectorAll(".words")].map((one) => one.textContent);
    expect(words).toEqual(["50%: 30"]);
  });
  it("draws dated axes, and thins names that have no room", () => {
    const ticks = (more: Partial<ChartOptions>): (string | null)[] => [...made(more).figure.svg.querySelectorAll(".axes g:nth-of-type(2) .tick text")].map((one) => one.textContent);
    expect(ticks({ x: { label: "day", domain: [Date.UTC(2026, 0, 1), Date.UTC(2026, 0, 3)], kind: "time" } })[0]).toBe("2026-01-01");
    const names = Array.from({ length: 40 }, (_, i) => `bit ${i}`);
    const shown = ticks({ x: { label: "bit", domain: [-0.5, 39.5], names } });
    expect(shown.length).toBeLessThan(12);
    expect(shown.at(-1)).toBe("bit 39");
  });
  it("says what it points at, by pointer and by keys", () => {
    const { figure, said } = made();
    figure.setTip([5, 15], (place) => ({ x: 5 + 10 * place, y: 25, value: `bar ${place}`, margin: "about", facts: [["Age", String(place)]] }));
    const press = (key: string): boolean => figure.element.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
    expect(press("ArrowRight")).toBe(false);
    press("End");
    expect(said).toEqual(["bar 0. about. Age: 0", "bar 1. about. Age: 1"]);
    expect(figure.element.querySelector<HTMLElement>(".tip")?.hidden).toBe(false);
    expect(number(figure.svg.querySelector(".here circle"), "cx")).toBeGreaterThan(0);
    press("Escape");
    expect(figure.element.querySelector<HTMLElement>(".tip")?.hidden).toBe(true);
    expect(press("x")).toBe(true);
  });
  it("keeps a short key for each style", () => {
    const root = document.createElement("div");
    new ChartFigure(root, { ...options, keys: [["s0", "estimate"], ["mark", "quantiles"]] }, { say: () => undefined });
    expect([...root.querySelectorAll(".keys li")].map((one) => one.textContent)).toEqual(["estimate", "quantiles"]);
  });
});
