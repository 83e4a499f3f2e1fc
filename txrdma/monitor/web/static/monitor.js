/*
 * Updates a page while it is open: requests it again after events of the monitor, or periodically if the page
 * says so, and replaces the parts that differ. Pages are made by the server alone.
 */
"use strict";

(() => {
    const LEAST_MILLISECONDS = 2000;
    const MOST_MILLISECONDS = 60000;
    const LOST = "Not connected; what you see may be old";
    const pollSeconds = Number(document.documentElement.dataset.poll);
    const status = document.getElementById("live");
    let asking = false;
    let isDue = false;
    let askedAt = 0;
    let events = null;

    function replaceParts(fresh) {
        for (const part of document.querySelectorAll("[data-live]")) {
            const newer = fresh.getElementById(part.id);
            if (newer === null || newer.isEqualNode(part)) {
                continue;
            }
            const focused = part.contains(document.activeElement) ? document.activeElement : null;
            const links = focused === null ? [] : [...part.querySelectorAll("a, [tabindex]")];
            const place = links.indexOf(focused);
            const scrolled = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
            part.replaceWith(document.adoptNode(newer));
            newer.querySelectorAll(".scroll").forEach((each, at) => {
                each.scrollLeft = scrolled[at] || 0;
            });
            if (focused !== null) {
                const same = [...newer.querySelectorAll("a, [tabindex]")];
                const next = same.find((each) => focused.id !== "" && each.id === focused.id)
                    || same.find((each) => each.href === focused.href && each.textContent === focused.textContent)
                    || same[Math.min(place, same.length - 1)];
                if (next !== undefined) {
                    next.focus({ preventScroll: true });
                }
            }
        }
    }

    async function refresh() {
        if (asking || document.hidden) {
            isDue = true;
            return;
        }
        const wait = askedAt + LEAST_MILLISECONDS - Date.now();
        asking = true;
        isDue = false;
        try {
            if (wait > 0) {
                await new Promise((done) => setTimeout(done, wait));
            }
            askedAt = Date.now();
            // Browsers refuse an address with a user and a password, as in http://alice:secret@host/.
            const address = `${location.origin}${location.pathname}${location.search}`;
            const signal = AbortSignal.timeout(MOST_MILLISECONDS); // of a host that has gone there is no answer
            const headers = { Accept: "text/html", "X-Refresh": "live" }; // only live parts are replaced
            const answer = await fetch(address, { headers, signal });
            if (!answer.ok) {
                throw new Error(answer.status);
            }
            replaceParts(new DOMParser().parseFromString(await answer.text(), "text/html"));
            if (pollSeconds || (events !== null && events.readyState === EventSource.OPEN)) {
                status.textContent = "Live";
            }
        } catch (error) {
            status.textContent = LOST;
        } finally {
            asking = false;
        }
        if (isDue) {
            refresh();
        }
    }

    /* Only of pages that are seen: a browser has six connections to a server, however many pages are open. */
    function listen() {
        if (events !== null || document.hidden) {
            return;
        }
        if (pollSeconds) {
            const timer = setInterval(refresh, pollSeconds * 1000);
            events = { close: () => clearInterval(timer) };
            return;
        }
        events = new EventSource(`${document.documentElement.dataset.prefix || ""}/api/v1/events`);
        events.addEventListener("open", () => {
            status.textContent = "Live";
        });
        events.addEventListener("error", () => {
            status.textContent = LOST;
        });
        for (const kind of ["round", "finding", "fabric", "resync"]) {
            events.addEventListener(kind, (event) => {
                const content = JSON.parse(event.data);
                document.dispatchEvent(new CustomEvent(`monitor-${kind}`, { detail: content }));
                refresh();
            });
        }
    }

    function rest() {
        if (events !== null) {
            events.close();
            events = null;
        }
    }

    function wake() {
        listen();
        document.dispatchEvent(new CustomEvent("monitor-resync", { detail: {} }));
        refresh();
    }

    document.addEventListener("visibilitychange", () => (document.hidden ? rest() : wake()));
    addEventListener("pagehide", rest);
    addEventListener("pageshow", (event) => {
        if (event.persisted) {
            wake();
        }
    });
    document.addEventListener("monitor-time", refresh);
    listen();
})();
