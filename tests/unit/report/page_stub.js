// A page without a browser: just enough of one for the timeline's script to draw on, and a record of what it drew.
let boxes = [];
const handlers = {};
const context = new Proxy({ measureText: () => ({ width: 1e9 }) }, {
  get: (own, name) => name === "fillRect" ? (x, y, w) => boxes.push([own.fillStyle, x, x + w]) : own[name] ?? (() => {}),
  set: (own, name, value) => { own[name] = value; return true; },
});
const element = (id) => ({
  id, style: {}, dataset: {}, classList: { toggle() {} }, clientWidth: 1066, scrollTop: 0, offsetWidth: 10, offsetHeight: 10,
  textContent: id === "zoom-data" ? `/*DATA*/` : "", children: [],
  append(...more) { this.children.push(...more); }, replaceChildren(...all) { this.children = all; },
  getContext: () => context, addEventListener(kind, call) { handlers[`${id}:${kind}`] = call; }, setPointerCapture() {},
});
const elements = {};
const document = {
  getElementById: (id) => elements[id] ??= element(id), createElement: (tag) => element(tag),
  querySelectorAll: () => [], documentElement: element("html"), activeElement: null,
};
const matchMedia = () => ({ matches: false, addEventListener() {} });
const getComputedStyle = () => ({ getPropertyValue: () => "ground" });
const requestAnimationFrame = (call) => call(), addEventListener = () => {}, innerHeight = 800, devicePixelRatio = 1;
class Option {}
const drawn = () => boxes.filter(([colour]) => colour.startsWith("#"));
/*SCRIPT*/
const whole = drawn();
boxes = [];
handlers["zoom-canvas:keydown"]({ key: "+", preventDefault() {} });
const zoomed = drawn();
handlers["zoom-canvas:keydown"]({ key: "Home", preventDefault() {} });
handlers["zoom-canvas:pointermove"]({ offsetX: 566, offsetY: 24 + 39 + 3 + 18 + 2, clientX: 0, clientY: 0 });
console.log(JSON.stringify([whole, zoomed, elements["zoom-tip"].children.map((line) => line.textContent)]));
