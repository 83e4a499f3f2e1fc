/* Draws what a port has counted over time: its data, and the errors that it has counted. */
"use strict";

(() => {
    const place = document.getElementById("charts");
    if (place === null) {
        return;
    }
    const { guid, port } = place.dataset;
    const seconds = Number(place.dataset.seconds);
    const PREFIXES = ["", "k", "M", "G", "T"];
    const RESOLUTION = seconds <= 3600 ? "readings" : seconds <= 7 * 86400 ? "minutes" : "hours";
    const bits = Number(place.dataset.bits);
    const CHARTS = [
        { title: "Data, octets each second", counters: { Sent: "portXmitData", Received: "portRcvData" } },
        { title: "Symbol errors each second", counters: { "Symbol errors": "symbolErrorCounter" } },
        { title: "Packets discarded each second", counters: { Discards: "portXmitDiscards" } },
        {
            title: "Error correction, blocks each second",
            counters: { Corrected: "portFECCorrectableBlockCtr", Lost: "portFECUncorrectableBlockCtr" },
            isOptional: true,
        },
        {
            title: "Symbols corrected, for each bit of the link",
            counters: { "Error rate before correction": "portFECCorrectedSymbolCtr" },
            isOptional: true,
            divisor: bits,
        },
    ];

    function amount(value) {
        if (value === null || value === undefined) {
            return "–";
        }
        let size = 0;
        while (Math.abs(value) >= 1000 && size < PREFIXES.length - 1) {
            value /= 1000;
            size += 1;
        }
        return `${Number(value.toPrecision(3))} ${PREFIXES[size]}`.trim();
    }

    function colour(name) {
        return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    }

    async function pointsOf(counter) {
        const end = Date.now() / 1000;
        const query = new URLSearchParams({ begin: end - seconds, end, resolution: RESOLUTION });
        try {
            const answer = await fetch(`${location.origin}${document.documentElement.dataset.prefix || ""}/api/v1/history/${guid}/${port}/${counter}?${query}`);
            return answer.ok ? (await answer.json()).points : [];
        } catch { // the monitor is away: "live" tells that, and the next round draws again
            return [];
        }
    }

    function makeChart(title, names, isHidden) {
        const box = document.createElement("div");
        box.className = "chart";
        box.hidden = isHidden;
        const heading = document.createElement("h3");
        heading.textContent = title;
        const drawing = document.createElement("div");
        drawing.setAttribute("role", "img");
        drawing.setAttribute("aria-label", `${title}: not read yet`);
        box.append(heading, drawing);
        place.append(box);
        const axis = {
            stroke: () => colour("--quiet"),
            grid: { stroke: () => colour("--line"), width: 1 },
            ticks: { stroke: () => colour("--line"), width: 1 },
        };
        const series = names.map((name, at) => ({
            label: name,
            stroke: () => colour(`--chart-${at + 1}`),
            width: 2,
            spanGaps: false,
            points: { show: false },
            value: (_chart, value) => amount(value),
        }));
        const chart = new uPlot({
            width: place.clientWidth,
            height: 200,
            scales: { y: { range: (_chart, _least, most) => [0, most > 0 ? most * 1.1 : 1] } },
            axes: [axis, { ...axis, size: 64, values: (_chart, values) => values.map(amount) }],
            series: [{}, ...series],
            cursor: { drag: { x: true, y: false } },
        }, [[], ...names.map(() => [])], drawing);
        return { box, chart, drawing, title };
    }

    /* All series of a chart have the same times: those of the first. A gap is null, and not zero. */
    function columnsOf(all, divisor) {
        const times = all[0].map((point) => point.at);
        return [times, ...all.map((points) => {
            const known = new Map(points.map((point) => [point.at, shown(point.rate, divisor)]));
            return times.map((at) => known.get(at) ?? null);
        })];
    }

    function shown(rate, divisor) {
        return rate === null ? null : rate / divisor;
    }

    /* Links without error correction have no charts of it: their places are hidden until there is a figure. */
    const charts = CHARTS.filter(({ divisor }) => divisor !== 0).map(({ title, counters, isOptional, divisor }) => ({
        ...makeChart(title, Object.keys(counters), Boolean(isOptional)),
        counters: Object.values(counters),
        divisor: divisor ?? 1,
    }));

    async function refresh() {
        for (const { box, chart, drawing, counters, title, divisor } of charts) {
            const all = await Promise.all(counters.map(pointsOf));
            box.hidden = box.hidden && all.every((points) => points.every((point) => point.rate === null));
            chart.setData(columnsOf(all, divisor));
            const last = all.map((points) => amount(points.length ? shown(points[points.length - 1].rate, divisor) : null));
            drawing.setAttribute("aria-label", `${title}: at last ${last.join(" and ")}`);
        }
        place.dataset.drawn = "yes";
    }

    let isWaiting = false;
    document.addEventListener("monitor-round", () => {
        if (!isWaiting) {
            isWaiting = true;
            setTimeout(() => {
                isWaiting = false;
                refresh();
            }, Math.min(60000, Math.max(5000, seconds)));
        }
    });
    new ResizeObserver(() => charts.forEach(({ chart }) => chart.setSize({ width: place.clientWidth, height: 200 })))
        .observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        charts.forEach(({ chart }) => chart.redraw(false, true));
    });
    refresh();
})();
