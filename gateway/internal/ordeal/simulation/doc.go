// Package simulation has no code of its own: its tests run the gateway's core, the real store and two fake backends under one seeded scheduler, thousands of times. Time is virtual; every request
// and answer between clients and core, every commit, every sync of a file and every call of a backend waits for the scheduler, which by the seed's random numbers lets one go on, loses it, sends it twice,
// crashes the gateway or a backend, cuts the power, moves the wall clock. After every recovery, and at the end, what clients were told must still be so; and the results must be, bit for bit, those that a
// backend gives which nothing disturbs. A failure is one number:
//
//	go test ./gateway/internal/ordeal/simulation -run TestSimulation -seed N -seeds 1
//
// repeats it and prints what was decided (one seed in some fifty may come out otherwise now and then: run it again). With -damage files of the data directory are damaged between a stop and a start as
// well: then everything must be as before or be refused by name, and no checkpoint's file may be gone. The simulation does not know HTTP, processes and other databases: the tests of the package above
// run the whole server.
package simulation
