/*
 * Sliders of the topology's page: the time that is shown, and the one that it is compared with. The address of
 * the page has both, so that it can be bookmarked; the server makes the tables, topology.js the drawing.
 */
"use strict";

(() => {
    const box = document.getElementById("timeline");
    if (box === null) {
        return;
    }
    const prefix = document.documentElement.dataset.prefix || "";
    const part = (name) => document.getElementById(`timeline-${name}`);
    const [range, marks, compare] = [part("range"), part("marks"), part("compare")];
    const sliders = { from: part("from"), to: part("to") };
    const STEPS = 1000;
    const WAIT_MILLISECONDS = 200;
    const AGAIN_MILLISECONDS = 2000;
    const asked = new URLSearchParams(location.search);
    const times = { from: asked.get("from"), to: asked.get("to") === "now" ? null : asked.get("to") }; // null is now
    let changes = [];
    let begin = 0;
    let timer = null;
    let again = null;

    function textOf(time) {
        return time === null ? "now" : `${new Date(time * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
    }

    function show() {
        for (const [name, slider] of Object.entries(sliders)) {
            slider.value = times[name] === null ? slider.max : times[name];
            slider.setAttribute("aria-valuetext", textOf(times[name]));
            part(`${name}-text`).textContent = textOf(times[name]);
        }
        sliders.to.disabled = !compare.checked;
        part("earlier").disabled = ![...changes, begin].some((at) => times.from === null || at < times.from);
        part("later").disabled = times.from === null;
    }

    function go() {
        const address = new URL(location.href);
        ["from", "to", "offset"].forEach((name) => address.searchParams.delete(name));
        const [first, last] = [times.from, times.to].map((time) => (time === null ? Infinity : Number(time)));
        const [earlier, later] = compare.checked ? [Math.min(first, last), Math.max(first, last)] : [first, null];
        if (earlier !== Infinity) {
            address.searchParams.set("from", earlier);
            if (later !== null) {
                address.searchParams.set("to", later === Infinity ? "now" : later);
            }
        }
        if (address.href !== location.href) {
            history.replaceState(null, "", address);
            document.dispatchEvent(new CustomEvent("monitor-time"));
        }
    }

    function set(name, time) {
        times[name] = time;
        show();
        clearTimeout(timer);
        timer = setTimeout(go, WAIT_MILLISECONDS);
    }

    async function load() {
        const seconds = Number(range.value);
        const since = seconds ? `?begin=${Math.floor(Date.now() / 1000) - seconds}` : "";
        const answer = await fetch(`${location.origin}${prefix}/api/v1/topology/times${since}`);
        if (!answer.ok) {
            return;
        }
        const told = await answer.json();
        const end = Math.floor(told.end);
        const step = Math.max(1, Math.ceil((end - told.begin) / STEPS));
        begin = Math.min(Math.ceil(told.begin), end);
        const known = told.marks.map((mark) => Math.ceil(mark.at));
        changes = known.filter((at) => at < end);
        clearTimeout(again);
        if (changes.length < known.length) { // the last change is of this second, and would be marked at "now"
            again = setTimeout(load, AGAIN_MILLISECONDS);
        }
        for (const slider of Object.values(sliders)) {
            slider.min = end - step * Math.max(1, Math.ceil((end - told.begin) / step));
            slider.max = end;
            slider.step = step;
        }
        marks.replaceChildren(...changes.map((at) => {
            const mark = document.createElement("option");
            mark.value = at;
            return mark;
        }));
        show();
        box.hidden = false;
        box.dataset.marks = changes.length;
    }

    for (const [name, slider] of Object.entries(sliders)) {
        slider.addEventListener("input", () => {
            set(name, Number(slider.value) >= Number(slider.max) ? null : Math.max(Number(slider.value), begin));
        });
    }
    part("earlier").addEventListener("click", () => {
        const earlier = changes.filter((at) => times.from === null || at < times.from);
        set("from", earlier.length ? earlier[earlier.length - 1] : begin);
    });
    part("later").addEventListener("click", () => {
        const later = changes.find((at) => at > times.from);
        set("from", later === undefined ? null : later);
    });
    part("now").addEventListener("click", () => {
        times.to = null;
        set("from", null);
    });
    compare.addEventListener("change", () => set("to", times.to));
    range.addEventListener("change", load);
    for (const kind of ["fabric", "finding", "resync"]) {
        document.addEventListener(`monitor-${kind}`, load);
    }
    compare.checked = asked.get("to") !== null;
    if (asked.get("from") !== null) {
        range.value = "0";
    }
    load();
})();
