// Which place a reader means by what is written into the search.
import { expect, test, vi } from "vitest";
import { meant, Search } from "../src/map/search";

const names = ["North Beach", "Beach", "Port", "South-East Shore"].map((name, i) => ({ name, box: { west: i, south: 0, east: i, north: 0 } }));

test("the same name comes before one that begins or goes on like it", () => {
  expect(["beach", " PORT ", "south", "east", "x", ""].map((text) => meant(names, text)?.name ?? null)).toEqual(["Beach", "Port", "South-East Shore", "South-East Shore", null, null]);
});

test("a zone is found by its id, a name that fits as well comes first", () => {
  const zones = [{ ...names[0], id: "S12" }, { ...names[1], id: "port 7" }, names[2]];
  expect(["s12", "12", "port 7", "po"].map((text) => meant(zones, text)?.name ?? null)).toEqual(["North Beach", "North Beach", "Beach", "Port"]);
  const search = new Search(vi.fn());
  const input = search.element.querySelector("input") as HTMLInputElement;
  search.offer(zones);
  expect(input.placeholder).toBe("Find a place or an id");
  search.offer(names);
  expect(input.placeholder).toBe("Find a place");
});

test("accents and upper case may be left out", () => {
  const polish = ["Łagiewniki", "Hjørring", "Gießen"].map((name) => ({ name, box: { west: 0, south: 0, east: 1, north: 1 } }));
  expect(["lagiew", "hjorring", "GIESSEN", "łag"].map((text) => meant(polish, text)?.name ?? null)).toEqual(["Łagiewniki", "Hjørring", "Gießen", "Łagiewniki"]);
});

test("Enter shows the place that is meant, a choice from the list shows it at once", () => {
  const show = vi.fn();
  const search = new Search(show);
  expect(search.element.hidden).toBe(true);
  search.offer(names);
  expect(search.element.hidden).toBe(false);
  const input = search.element.querySelector("input") as HTMLInputElement;
  input.value = "Port";
  input.dispatchEvent(new Event("input"));
  expect(show).toHaveBeenLastCalledWith(names[2]);
  input.value = "nor";
  input.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  expect(show).toHaveBeenLastCalledWith(names[0]);
  input.value = "nowhere";
  input.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  expect(show).toHaveBeenCalledTimes(2);
  expect(input.getAttribute("aria-invalid")).toBe("true");
  const answer = search.element.querySelector("[role=status]");
  expect(answer?.textContent).toBe("No place or zone contains \u201cnowhere\u201d");
  input.dispatchEvent(new Event("input"));
  expect([input.getAttribute("aria-invalid"), answer?.textContent]).toEqual(["false", ""]);
});
