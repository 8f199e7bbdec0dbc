"""Build the documentation as a site: `make docs`. Pages are GitHub's Markdown; index.md has the navigation."""

project = "warmlog"
html_title = "warmlog"
extensions = ["myst_parser"]
exclude_patterns = ["adr/template.md"]
myst_heading_anchors = 4  # anchors as GitHub makes them, so that links work in both places
nitpicky = True  # with -W, a link to a page, a file or a heading that does not exist fails the build
suppress_warnings = ["misc.highlighting_failure"]  # blocks of bytes in hexadecimal have no lexer
html_theme = "furo"
html_show_sourcelink = False
html_copy_source = False
