// Package selftest shows on the user's own hardware what the README promises, and says where it does not hold. Run asks a server for the same work in two ways and compares the answers, bit for bit where equal
// bits are promised: sent ahead and one by one, in parts and whole, alone and in a crowd, by the trainer and by the sampler, with and without a kill in between, before an export and after the import, and today and when
// a reference file was written.
//
// It is a client like any other: what it knows of the server is the public HTTP API and, to kill them, its processes. It uses no other package of the gateway, so that nothing is compared with itself. The server is the
// command's to choose: Start starts one with the user's model and backend, and with records of its own.
package selftest
