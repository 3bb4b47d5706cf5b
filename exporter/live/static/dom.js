// Changing only what differs: nodes stay, so a selection and a scroll position do too.

// Job ids and stages come from training processes: text only, never markup.
export function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content);
  return element;
}

export function text(element, value) {
  const wanted = String(value ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

const written = new WeakMap(); // element: its prose

// Text in which what stands between backticks is code.
export function prose(element, value) {
  const wanted = String(value ?? "");
  if (written.get(element) === wanted) return;
  written.set(element, wanted);
  const parts = wanted.split(/`([^`]+)`/).map((part, index) => index % 2 ? make("code", "", part) : part);
  element.replaceChildren(...parts.filter((part) => part !== ""));
}

export function attribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function className(element, value) {
  if (element.getAttribute("class") !== value) element.setAttribute("class", value);
}

export function width(element, percent) {
  const wanted = Math.round(percent * 10) / 10 + "%";
  if (element.style.width !== wanted) element.style.width = wanted;
}

export function show(element, isShown) {
  if (element.hidden === isShown) element.hidden = !isShown;
}

const children = new WeakMap(); // parent: key: what create() returned

// Give parent one child for each item, in this order. create() returns {node, update(item)}.
export function keyed(parent, items, key, create) {
  const before = children.get(parent) ?? new Map();
  const after = new Map();
  for (const item of items) {
    const view = before.get(key(item)) ?? create(item);
    view.update(item);
    after.set(key(item), view);
  }
  for (const [name, view] of before) if (!after.has(name)) view.node.remove();
  let place = parent.firstElementChild;
  for (const { node } of after.values()) {
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  children.set(parent, after);
}

// The same for a list of prose.
export function texts(parent, tag, values) {
  keyed(parent, values.map((value, index) => ({ value, index })), (item) => item.index, () => {
    const node = make(tag);
    return { node, update: (item) => prose(node, item.value) };
  });
}
