// Package tenants has no code of its own: its tests and benchmarks look at a server with two keys, and ask whether the one can see, slow down or stop what the other does. They
// run against any server that speaks the Tinker API:
//
//	go test ./e2e/tenants -url http://HOST:PORT -key-a KEY -key-b KEY -base-model NAME
//	go test ./e2e/tenants -url … -run '^$' -bench . -benchtime 1x
//
// Without -url they build this tree's server and start one of their own with the built-in model. What only a process of one's own can be asked (its memory, its files, its limit of descriptors) is
// skipped with -url, and so is what needs /v1 where that is not served; each says so.
//
// Tests assert facts, never times: what was refused, what a neighbour saw, and what was finished while something else was not. Times are the benchmarks': each has the neighbour's request alone
// and beside what the other key does, and reports the 95th percentile of both and their ratio.
package tenants
