"""
The monitor over HTTP: pages for people, REST and events for programs, metrics for Prometheus.

Requests and their limits:

 - C{site}: the site of one fabric: headers, limits of connections and bodies (C{MOST_CONNECTIONS},
   C{MOST_BODY}), paths for the probes of load balancers.
 - C{fabrics}: the site of several fabrics.
 - C{remotes}: fabrics whose monitors are other processes: how they are read, with limits of time
   (C{STATE_SECONDS}) and size.
 - C{parameters}: parameters of requests, and their parsing.
 - C{searches}: searches of large tables in pieces, once for equal requests, with limits (C{MOST_SEARCHES}).
 - C{watch}: what all pages know of a fabric, and the context of one request; liveness and readiness.

Pages:

 - C{html}: answers requests with pages and errors.
 - C{layout}: frame, menu, tables and other parts of pages.
 - C{pages}: the pages.
 - C{actions}: POST requests of operators: acknowledgements and comments.

REST and tables:

 - C{tables}: columns of tables, filters and order; rows of a page.
 - C{routes}: routes of REST, their answers and schemas.
 - C{rest}: answers these over HTTP, and errors.
 - C{openapi}: the description of REST.

What both show:

 - C{topology}: switches and bundles of links for the drawing, with levels of a fat tree.
 - C{past}: the fabric at an earlier time, and differences between two times.
 - C{tracing}: paths between two nodes.
 - C{blastradius}: what would be lost without a node or cable, with jobs of Slurm.

For other programs and scripts:

 - C{events}: server-sent events: what each round sends, and when a slow reader gets C{resync} or is closed
   (C{MOST_WAITING}, C{STALLED_SECONDS}).
 - C{metrics}: metrics of the monitor and of findings.
 - C{scrapes}: C{/metrics}: how scrapes are made, compressed and shared (C{SHARED_SECONDS}).
"""
