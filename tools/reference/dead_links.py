"""The links of a built site that lead nowhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


class _Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if given.get("id"):
            self.ids.add(given["id"])
        if tag == "a" and given.get("name"):
            self.ids.add(given["name"])
        for key in ("href", "src"):
            if given.get(key):
                self.links.append(given[key])


def dead_links(site):
    """(page, link) of each link to a file or a place that the site has not. Links to other sites are not tried."""
    site = Path(site).resolve()
    pages = {path: _Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for link in page.links:
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            file, place = urldefrag(link)
            target = (path.parent / unquote(urlsplit(file).path)).resolve() if file else path
            if target.is_dir():
                target /= "index.html"
            is_there = site in target.parents and target.exists()
            if not is_there or (place and target in pages and unquote(place) not in pages[target].ids):
                yield path.relative_to(site).as_posix(), link
