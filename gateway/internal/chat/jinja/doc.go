// Package jinja interprets the Jinja templates that model directories carry as their chat template, and renders what Python's jinja2 3.1 renders
// when transformers sets it up: a sandboxed, immutable environment with trim_blocks and lstrip_blocks, the loop-control and generation tags,
// a tojson filter that is json.dumps without ASCII escapes, raise_exception and strftime_now.
//
// It is an interpreter of our own because a prompt must be equal to the last byte: a model was trained on what jinja2 printed. The general-purpose
// Go engines differ from jinja2 in scoping, whitespace control, number and container printing, undefined values and key order, and each such
// difference moves a token. Scoping follows jinja2's own rule, which is static: a name's place is decided when the template is parsed
// (see scope.go), not by looking through a chain of maps while it runs.
//
// Templates are hostile input. Parsing bounds size and nesting; rendering bounds steps, output, memory and depth ([Limits]), and nothing a template
// does reaches files, network, environment variables or Go values other than the ones it was given. Values are immutable to a template; only
// namespaces are not.
//
// The package knows nothing of chat, models or HTTP.
//
// Left out on purpose, each an error at parse time that names the tag: extends, include, import, from and block (there is no loader) and
// autoescape (chat templates render text, not HTML).
package jinja
