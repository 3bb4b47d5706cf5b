"""Looks at a report's page with axe-core in a headless Chromium."""

import json
import re
from pathlib import Path
from typing import Any

from tests.exporter.live.browser import AXE, dom

# The page is one file: axe is put into a copy of it.
LOOK = """
<pre id="found">nothing</pre><script>{axe}</script><script>
axe.run("main", {{ resultTypes: ["violations"] }}).then((result) => {{
  const told = result.violations.map(({{ id, nodes }}) => id + nodes[0].html);
  document.getElementById("found").textContent = JSON.stringify(told);
}});
</script>"""


def violations(page: Path, *flags: str) -> Any:
    """Return what axe finds wrong in *page*, and the first element of each."""
    copy = page.with_suffix(".axe.html")
    look = LOOK.format(axe=AXE.read_text(encoding="utf-8"))
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{look}</body>"))
    text = dom(copy.as_uri(), page.parent / "chromium", 3_000, *flags)
    (told,) = re.findall(r'<pre id="found">(.*?)</pre>', text, flags=re.DOTALL)
    return json.loads(told.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
