// Elements from text and elements: no markup is ever parsed.

export type Child = Node | string | null | undefined | false | Child[];
type Attributes = Record<string, string | number | boolean | null | undefined>;

function fill<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  const add = (child: Child): void => {
    if (Array.isArray(child)) child.forEach(add);
    else if (child !== null && child !== undefined && child !== false) element.append(child);
  };
  children.forEach(add);
  return element;
}

/** An element of HTML. An attribute that is null, undefined or false is left out. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of SVG. */
export function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** A button with a text. */
export function button(label: string, act: () => void, attributes: Attributes = {}): HTMLButtonElement {
  const element = h("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", act);
  return element;
}

/** A group of radio buttons, drawn as one control. Returns the fieldset; `choose` is called with the place of a choice. */
export function choice(legend: string, options: string[], chosen: number, choose: (place: number) => void): HTMLFieldSetElement {
  const name = `choice-${legend.toLowerCase().replace(/\W+/g, "-")}`;
  return h("fieldset", { class: "choice" }, h("legend", {}, legend), options.map((text, place) => {
    const input = h("input", { type: "radio", name, value: place, checked: place === chosen });
    input.addEventListener("change", () => choose(place));
    return h("label", {}, input, h("span", {}, text));
  }));
}
