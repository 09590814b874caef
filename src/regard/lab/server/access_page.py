"""The page for a person who opens the lab without its token, in both languages."""

from __future__ import annotations

from html import escape

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Regard: {title}</title>
<style>
:root {{ color-scheme: light dark; --accent: #b04e0a; --line: #dfe3ec; font: 16px/1.6 system-ui, "PingFang SC",
  "Microsoft YaHei", "Noto Sans CJK SC", "WenQuanYi Zen Hei", sans-serif; }}
@media (prefers-color-scheme: dark) {{ :root {{ --accent: #f4a15d; --line: #2f3442; }} }}
body {{ margin: 0; min-height: 100vh; display: grid; place-items: center; }}
main {{ max-width: 60ch; padding: 24px; }}
h1 {{ font-size: 22px; margin: 0 0 4px; }} h2 {{ font-size: 18px; margin: 0 0 4px; }}
section + section {{ border-top: 1px solid var(--line); margin-top: 20px; padding-top: 20px; }}
ol {{ padding-left: 1.3em; margin: 8px 0 0; }}
code {{ font: 14px ui-monospace, Consolas, monospace; overflow-wrap: anywhere; color: var(--accent); }}
</style>
</head>
<body>
<main>
<section>
<h1>{title}</h1>
<p>{reason}</p>
<ol><li>Go to the terminal in which <code>regard lab</code> runs.</li>
<li>Open the whole address that it printed: <code>http://{host}/?token=…</code></li>
<li>If the terminal is closed, run <code>regard lab</code> again: each start has a new token.</li></ol>
</section>
<section lang="zh-CN">
<h2>{title_zh}</h2>
<p>{reason_zh}</p>
<ol><li>回到运行 <code>regard lab</code> 的终端。</li>
<li>打开它打印的完整地址：<code>http://{host}/?token=…</code></li>
<li>如果终端已经关闭，请重新运行 <code>regard lab</code>：每次启动都有新的令牌。</li></ol>
</section>
</main>
</body>
</html>
"""
TEXTS = {
    401: {
        "title": "This lab opens with its token",
        "reason": "The address has no token, or an old one. The token keeps other users and pages out of your lab.",
        "title_zh": "打开实验室需要令牌",
        "reason_zh": "地址里没有令牌，或者令牌已经失效。令牌可以防止其他用户和网页进入你的实验室。",
    },
    403: {
        "title": "This lab has another address",
        "reason": "The lab answers on this machine under one address only.",
        "title_zh": "实验室的地址不是这个",
        "reason_zh": "实验室只在本机以一个地址提供服务。",
    },
}
"""The texts by HTTP status."""


def access_page(status: int, host: str) -> str:
    """The HTML page that says how to open the lab; `host` is where it answers."""
    return PAGE.format(host=escape(host), **TEXTS[status])
