// Package hostile has no code of its own: its tests start the real server and send it everything that nobody should send. What they hold it to: a
// refusal is a 4xx with a length and a message that names the field (or a failed future of category user where the protocol wants one), never a 500, a panic,
// a hang or a half-applied step; a run that saw refusals ends with the same bits as one that did not; nothing of a stranger's is visible; nothing secret is logged.
//
// Requests are written byte by byte, not with the server's own types, which could not say the wrong thing.
package hostile
