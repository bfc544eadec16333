import { beforeEach, expect, test, vi } from "vitest";
import { choice, h } from "../src/dom";
import { csv } from "../src/download";
import { wrap } from "../src/map/picture";
import { Permalink } from "../src/permalink";
import { captionOf } from "../src/product";
import type { PageView } from "../src/views";

beforeEach(() => history.replaceState(null, "", location.pathname));

test("a link holds what was kept and gives it back", () => {
  const link = new Permalink();
  link.set("map", "12.30/1.0650/3.0650");
  link.set("layer", 2);
  link.set("night", "2026-11-18 & more");
  const address = link.address();
  expect(address).toMatch(/#map=12\.30\/1\.0650\/3\.0650&layer=2&night=2026-11-18\+%26\+more$/);
  const again = new Permalink();
  expect(again.get("night")).toBe("2026-11-18 & more");
  expect(again.index("layer", 3, 0)).toBe(2);
  link.set("map", null);
  expect(link.address()).not.toContain("map");
});

test("a number that is no place in a list is not taken from a link", () => {
  history.replaceState(null, "", "#layer=7&measure=-1&other=x&half=0.5");
  const link = new Permalink();
  expect(["layer", "measure", "other", "half", "none"].map((key) => link.index(key, 3, 1))).toEqual([1, 1, 1, 1, 1]);
});

test("a hash that the reader writes is heard, an anchor stays", () => {
  const link = new Permalink();
  const heard = vi.fn();
  link.onChange(heard);
  history.replaceState(null, "", "#report");
  dispatchEvent(new HashChangeEvent("hashchange"));
  expect(heard).toHaveBeenCalledOnce();
  expect(link.get("report")).toBe("");
  expect(link.address()).toMatch(/#report$/);
});

test("a table is CSV, whatever its texts hold", () => {
  expect(csv(["a", "b"], [['say "x"', 1.5], ["one, two\n", null], [true, "="]])).toBe('a,b\r\n"say ""x""",1.5\r\n"one, two\n",\r\ntrue,=\r\n');
});

test("texts never become markup", () => {
  const text = "<img src=x onerror=alert(1)>";
  const element = h("p", { title: text, hidden: false, lang: null }, [text, [null, false, h("b", {}, "b")]]);
  expect(element.querySelector("img")).toBeNull();
  expect(element.textContent).toBe(`${text}b`);
  expect([...element.attributes].map((one) => one.name)).toEqual(["title"]);
});

test("a choice tells which was chosen", () => {
  const chosen = vi.fn();
  const group = choice("Colour by", ["Users", "Rate"], 0, chosen);
  document.body.append(group);
  const [users, rate] = group.querySelectorAll("input");
  expect([users.checked, rate.checked, users.name === rate.name]).toEqual([true, false, true]);
  rate.click();
  expect(chosen).toHaveBeenCalledWith(1);
});

test("a saved picture has place and days, the epsilon, the guarantee and the geography's source", () => {
  const view = { heading: null, headline: "About 900 users", place: "Harbour", period: "6 Oct 2026", chips: [{ term: "Privacy budget", text: "\u03b5 = 1" }, { term: "Made", text: "today" }], alarm: null, guarantee: "Nobody.", basemap: { source: "GeoNames, CC BY 4.0" } };
  const caption = captionOf(view as unknown as PageView);
  expect(caption.title).toBe("About 900 users");
  expect(caption.subtitle).toBe("Harbour · 6 Oct 2026");
  expect(caption.notes).toEqual(["Privacy budget: \u03b5 = 1 · Made: today", "Nobody.", "Geography: GeoNames, CC BY 4.0"]);
  expect(captionOf({ ...view, alarm: "A known seed." } as unknown as PageView).notes[1]).toBe("A known seed.");
  expect(captionOf({ ...view, basemap: { source: "" } } as unknown as PageView).notes.join(" ")).not.toContain("Geography");
});

test("a long text is broken into lines between its words", () => {
  expect(wrap("one two three, four", 9, (text) => text.length)).toEqual(["one two", "three,", "four"]);
  expect(wrap("extraordinarily long", 4, (text) => text.length)).toEqual(["extraordinarily", "long"]);
});
