/*
 * Draws the switches of a fabric and the links between them. Fat trees come with levels from the server; other
 * fabrics are laid out here, the same each time. The table of links has all that the drawing shows.
 */
"use strict";

(() => {
    const place = document.getElementById("topology");
    const figure = document.getElementById("topology-figure");
    const search = document.getElementById("topology-search");
    const colouring = document.getElementById("topology-colour");
    const legend = document.getElementById("topology-legend");
    const prefix = document.documentElement.dataset.prefix || "";
    const BUSY = [0.01, 0.25, 0.5, 0.8];
    const WRONG = [1e-9, 0.01, 1, 100];
    const LEGENDS = {
        load: ["idle", "up to 25 %", "up to 50 %", "up to 80 %", "beyond 80 %, or down"],
        errors: ["no errors", "fewer than 1 in 100 s", "up to 1 a second", "up to 100", "more, or down"],
        past: ["no finding", "a notice", "a warning", "critical", "missing"],
        difference: ["as before", "added", "changed", "removed"],
    };
    const CHANGES = { added: "ok", changed: "warning", removed: "critical" };
    let graph = null;
    let renderer = null;
    let version = -1;
    let loads = 0;
    let mode = "now"; // or the past, or the difference between two times
    let written = [];
    let hovered = null;
    let colours = {};

    function readColours() {
        const style = getComputedStyle(document.documentElement);
        const names = ["text", "quiet", "card", "line", "link", "ok", "info", "warning", "critical", "page"];
        colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
        colours.load = [0, 1, 2, 3, 4].map((at) => style.getPropertyValue(`--load-${at}`).trim());
    }

    function step(edge) {
        if (edge.down > 0) {
            return 4;
        }
        const value = colouring.value === "load" ? edge.load : edge.errorRate;
        const steps = colouring.value === "load" ? BUSY : WRONG;
        return value === null ? 0 : steps.filter((least) => value >= least).length;
    }

    function drawLegend() {
        const [kind, swatches] = mode === "now" ? [colouring.value, "load"] : [mode, mode];
        colouring.disabled = mode !== "now";
        legend.replaceChildren(...LEGENDS[kind].map((text, at) => {
            const item = document.createElement("span");
            const swatch = document.createElement("span");
            swatch.className = `swatch ${swatches}-${at}`;
            item.append(swatch, text);
            return item;
        }));
    }

    /* Positions by springs and repulsion, from a spiral on: no chance, so the picture stays. */
    function layFree(nodes, edges) {
        const count = nodes.length;
        const at = new Map(nodes.map((node, index) => [node.guid, index]));
        const x = nodes.map((_node, index) => Math.sqrt(index + 0.5) * Math.cos(index * 2.399963));
        const y = nodes.map((_node, index) => Math.sqrt(index + 0.5) * Math.sin(index * 2.399963));
        const pairs = edges.map((edge) => [at.get(edge.from), at.get(edge.to)]);
        const rounds = Math.max(20, Math.min(300, Math.floor(4e7 / (count * count + 1))));
        for (let round = 0; round < rounds; round += 1) {
            const heat = 0.5 * Math.sqrt(count) * (1 - round / rounds) * 0.2;
            const dx = new Float64Array(count);
            const dy = new Float64Array(count);
            for (let one = 0; one < count; one += 1) {
                for (let other = one + 1; other < count; other += 1) {
                    const ax = x[one] - x[other];
                    const ay = y[one] - y[other];
                    const force = 1 / (ax * ax + ay * ay + 0.01);
                    dx[one] += ax * force;
                    dy[one] += ay * force;
                    dx[other] -= ax * force;
                    dy[other] -= ay * force;
                }
            }
            for (const [one, other] of pairs) {
                const ax = x[one] - x[other];
                const ay = y[one] - y[other];
                const force = Math.hypot(ax, ay) * 0.5;
                dx[one] -= ax * force;
                dy[one] -= ay * force;
                dx[other] += ax * force;
                dy[other] += ay * force;
            }
            for (let index = 0; index < count; index += 1) {
                const length = Math.hypot(dx[index], dy[index]) || 1;
                x[index] += (dx[index] / length) * Math.min(length, heat);
                y[index] += (dy[index] / length) * Math.min(length, heat);
            }
        }
        return nodes.map((_node, index) => ({ x: x[index], y: y[index] }));
    }

    function positions(told) {
        if (told.shape === "free") {
            return layFree(told.nodes, told.edges);
        }
        const most = Math.max(...told.nodes.map((node) => node.level));
        const ratio = place.clientWidth / Math.max(1, place.clientHeight - 60);
        const width = ratio * (most * 1.3 + 0.8);
        return told.nodes.map((node) => ({ x: node.place * width, y: node.level * 1.3 }));
    }

    function makeGraph(told) {
        const made = new graphology.UndirectedGraph();
        const where = positions(told);
        const isLevels = told.shape === "levels";
        told.nodes.forEach((node, index) => {
            made.addNode(node.guid, {
                ...where[index], label: node.name || node.guid, size: isLevels ? 9 : 7 + Math.sqrt(node.hosts), node, kind: "switch",
            });
            const changed = [["−", node.hostsRemoved], ["+", node.hostsAdded]].filter(([, count]) => count > 0);
            if ((node.hosts > 0 || changed.length > 0) && isLevels) {
                const under = `${node.guid}/hosts`;
                const difference = mode === "difference" ? changed.map(([sign, count]) => ` ${sign}${count}`).join("") : "";
                made.addNode(under, {
                    x: where[index].x, y: where[index].y - 0.8, size: 4 + Math.sqrt(node.hosts),
                    label: `${node.hosts} host${node.hosts === 1 ? "" : "s"}${difference}`, node, kind: "hosts",
                });
                made.addEdge(node.guid, under, { kind: "hosts", size: 1 + Math.log2(Math.max(1, node.hosts)) / 2 });
            }
        });
        for (const edge of told.edges) {
            made.addEdgeWithKey(edge.id, edge.from, edge.to, {
                edge, kind: "links", size: Math.min(5, 1 + 0.7 * Math.log2(Math.max(1, edge.links))),
            });
        }
        return made;
    }

    function isFound(data) {
        const wanted = search.value.trim().toLowerCase();
        return wanted !== "" && (data.node.name.toLowerCase().includes(wanted) || data.node.guid.includes(wanted));
    }

    function nodeChange({ kind, node }) {
        if (kind === "switch") {
            return node.change;
        }
        const [isLess, isMore] = [node.hostsRemoved > 0, node.hostsAdded > 0];
        return isLess && isMore ? "changed" : isLess ? "removed" : isMore ? "added" : null;
    }

    function nodeLook(id, data) {
        const worst = data.kind === "hosts" ? data.node.hostsWorst : data.node.worst;
        const usual = data.kind === "hosts" ? colours.quiet : colours.link;
        const made = { ...data, color: data.node.isSilent ? colours.info : usual, zIndex: 1 };
        if (worst !== null) {
            made.color = colours[worst];
        }
        if (mode === "difference") {
            made.color = colours[CHANGES[nodeChange(data)]] || usual;
        }
        const isNear = hovered === null || hovered === id || graph.areNeighbors(hovered, id);
        if (!isNear || (search.value.trim() !== "" && !isFound(data))) {
            made.color = colours.line;
            made.label = isNear ? "" : data.label;
        } else if (search.value.trim() !== "") {
            made.forceLabel = true;
        }
        return made;
    }

    /* Rank of a bundle among those drawn above each other, and its colour. */
    function pastLook(edge) {
        if (mode === "difference") {
            return edge.change === null ? [0, null] : [4, colours[CHANGES[edge.change]]];
        }
        return edge.down > 0 ? [4, null] : edge.worst === null ? [0, null] : [3, colours[edge.worst]];
    }

    function edgeLook(id, data) {
        const made = { ...data, zIndex: 0, color: colours.line };
        if (data.kind === "links") {
            const [at, color] = mode === "now" ? [step(data.edge), null] : pastLook(data.edge);
            made.color = color || colours.load[at];
            made.zIndex = at;
            made.size = data.size + (at > 2 ? 1 : 0);
        }
        if (hovered !== null && !graph.hasExtremity(id, hovered)) {
            made.hidden = true;
        }
        return made;
    }

    /* Labels where there is room for them: one that would cover another is left out. */
    function drawLabel(context, data, settings) {
        writeLabel(context, data, settings, (box) => {
            const isFree = written.every((other) => box.right < other.left || other.right < box.left
                || box.bottom < other.top || other.bottom < box.top);
            if (isFree) {
                written.push(box);
            }
            return isFree;
        });
        place.dataset.labels = written.length;
    }

    function drawHover(context, data, settings) {
        writeLabel(context, data, settings, () => true);
    }

    /* Below its node in a tree, beside it elsewhere, on the colour of the card. */
    function writeLabel(context, data, settings, isWanted) {
        if (!data.label) {
            return;
        }
        context.font = `${settings.labelWeight} ${settings.labelSize}px ${settings.labelFont}`;
        const width = context.measureText(data.label).width;
        const isUnder = graph.getAttribute("shape") === "levels";
        const x = isUnder ? data.x - width / 2 : data.x + data.size + 4;
        const above = data.node && data.node.level > 0 && isUnder;
        const y = isUnder ? data.y + (above ? -data.size - 6 : data.size + 13) : data.y + 4;
        if (!isWanted({ left: x - 2, right: x + width + 2, top: y - 11, bottom: y + 3 })) {
            return;
        }
        context.globalAlpha = 0.8;
        context.fillStyle = colours.card;
        context.fillRect(x - 2, y - 11, width + 4, 14);
        context.globalAlpha = 1;
        context.fillStyle = colours.text;
        context.fillText(data.label, x, y);
    }

    function sigmaRenderer() {
        const made = new Sigma(graph, place, {
            allowInvalidContainer: true,
            defaultDrawNodeLabel: drawLabel,
            defaultDrawNodeHover: drawHover,
            labelFont: "system-ui, sans-serif",
            labelSize: 12,
            labelWeight: "600",
            labelDensity: 3,
            labelGridCellSize: 70,
            labelRenderedSizeThreshold: 5,
            nodeReducer: nodeLook,
            edgeReducer: edgeLook,
            stagePadding: 34,
            zIndex: true,
        });
        made.on("beforeRender", () => {
            written = [];
        });
        made.on("enterNode", ({ node }) => {
            hovered = node;
            place.classList.add("pointing");
            renderer.refresh({ skipIndexation: true });
        });
        made.on("leaveNode", () => {
            hovered = null;
            place.classList.remove("pointing");
            renderer.refresh({ skipIndexation: true });
        });
        made.on("clickNode", ({ node }) => {
            open(node);
        });
        return made;
    }

    /* The same drawing in SVG, for browsers without WebGL: it can be zoomed by the buttons. */
    function plainRenderer() {
        const pen = document.createElement("canvas").getContext("2d");
        const settings = { labelFont: "system-ui, sans-serif", labelSize: 12, labelWeight: "600" };
        let ratio = 1;
        let isDue = false;

        function made(name, attributes, text = "") {
            const element = document.createElementNS("http://www.w3.org/2000/svg", name);
            Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
            element.textContent = text;
            return element;
        }

        const svg = made("svg", { width: "100%", height: "100%" });
        place.replaceChildren(svg);

        function refresh() {
            const [width, height] = [place.clientWidth, place.clientHeight];
            const [xs, ys] = ["x", "y"].map((name) => graph.mapNodes((_id, data) => data[name]));
            const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
            const scale = Math.min((width - 68) / (right - left || 1), (height - 68) / (high - low || 1));
            const nodes = new Map(graph.mapNodes((id, data) => [id, {
                ...nodeLook(id, data), x: (data.x - (left + right) / 2) * scale, y: ((low + high) / 2 - data.y) * scale,
            }]));
            const lines = graph.mapEdges((id, data, from, to) => [edgeLook(id, data), nodes.get(from), nodes.get(to)]);
            lines.sort(([one], [other]) => one.zIndex - other.zIndex);
            const parts = lines.map(([look, from, to]) => made("line", {
                x1: from.x, y1: from.y, x2: to.x, y2: to.y, stroke: look.color, "stroke-width": look.size,
            }));
            const labels = [];
            const context = {
                set font(font) {
                    pen.font = font;
                },
                measureText: (text) => pen.measureText(text),
                fillRect: (x, y, wide, tall) => labels.push(made("rect", { x, y, width: wide, height: tall, fill: colours.card, opacity: 0.8 })),
                fillText: (text, x, y) => labels.push(made("text", { x, y, fill: colours.text, "font-size": 12, "font-weight": 600 }, text)),
            };
            written = [];
            for (const [id, look] of nodes) {
                const circle = made("circle", { cx: look.x, cy: look.y, r: look.size, fill: look.color, cursor: "pointer" });
                circle.append(made("title", {}, graph.getNodeAttribute(id, "label")));
                circle.addEventListener("click", () => open(id));
                parts.push(circle);
                drawLabel(context, look, settings);
            }
            svg.setAttribute("viewBox", [-width, -height, 2 * width, 2 * height].map((each) => (each * ratio) / 2).join(" "));
            svg.replaceChildren(...parts, ...labels);
        }

        function zoomed(to) {
            ratio = to;
            refresh();
        }

        graph.on("edgeAttributesUpdated", () => {
            if (!isDue) {
                isDue = true;
                requestAnimationFrame(() => {
                    isDue = false;
                    refresh();
                });
            }
        });
        refresh();
        return {
            kill: () => svg.remove(),
            refresh,
            getNodeDisplayData: () => ({}),
            getCamera: () => ({
                getState: () => ({ ratio }),
                setState: (state) => zoomed(state.ratio),
                animate: () => {},
                animatedZoom: () => zoomed(ratio / 1.5),
                animatedUnzoom: () => zoomed(ratio * 1.5),
                animatedReset: () => zoomed(1),
            }),
        };
    }

    function open(id) {
        location.href = `${prefix}/nodes/${id.split("/")[0]}`;
    }

    function draw(told) {
        const camera = renderer === null ? null : renderer.getCamera().getState();
        if (renderer !== null) {
            renderer.kill();
        }
        version = told.version;
        hovered = null;
        graph = makeGraph(told);
        graph.setAttribute("shape", told.shape);
        try {
            renderer = sigmaRenderer();
        } catch (error) {
            renderer = plainRenderer(); // no WebGL
        }
        if (camera !== null) {
            renderer.getCamera().setState(camera);
        }
    }

    function source() {
        const query = new URLSearchParams(location.search);
        const [from, to] = [query.get("from"), query.get("to")];
        if (from === null) {
            return "";
        }
        return to === null ? `/at?at=${from}` : `/difference?from=${from}${to === "now" ? "" : `&to=${to}`}`;
    }

    async function load() {
        loads += 1;
        const number = loads;
        const path = source();
        const answer = await fetch(`${location.origin}${prefix}/api/v1/topology${path}`);
        const told = answer.ok ? await answer.json() : { nodes: [] };
        if (told.nodes.length === 0 || number !== loads) {
            return;
        }
        mode = path === "" ? "now" : told.since === null ? "past" : "difference";
        place.dataset.mode = mode;
        figure.hidden = false;
        readColours();
        drawLegend();
        draw(told);
        place.dataset.drawn = "yes";
    }

    function again() {
        if (renderer !== null) {
            renderer.refresh({ skipIndexation: true });
        }
    }

    search.addEventListener("input", () => {
        again();
        const found = graph === null ? [] : graph.filterNodes((_id, data) => data.kind === "switch" && isFound(data));
        if (found.length === 1) {
            const { x, y } = renderer.getNodeDisplayData(found[0]);
            renderer.getCamera().animate({ x, y, ratio: 0.5 }, { duration: 200 });
        }
    });
    colouring.addEventListener("change", () => {
        drawLegend();
        again();
    });
    document.getElementById("topology-in").addEventListener("click", () => renderer.getCamera().animatedZoom());
    document.getElementById("topology-out").addEventListener("click", () => renderer.getCamera().animatedUnzoom());
    document.getElementById("topology-whole").addEventListener("click", () => renderer.getCamera().animatedReset());
    place.addEventListener("wheel", (event) => event.preventDefault(), { passive: false });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        readColours();
        again();
    });
    document.addEventListener("monitor-time", load);
    document.addEventListener("monitor-round", (event) => {
        if (mode !== "now") {
            return;
        }
        if (graph === null) {
            load();
            return;
        }
        for (const edge of event.detail.edges) {
            if (graph.hasEdge(edge.id)) {
                graph.setEdgeAttribute(edge.id, "edge", edge);
                place.dataset.round = event.detail.statistics.turns;
            }
        }
    });
    document.addEventListener("monitor-fabric", (event) => {
        if (event.detail.version !== version) {
            load();
        }
    });
    for (const kind of ["finding", "resync"]) {
        document.addEventListener(`monitor-${kind}`, load);
    }
    load();
})();
