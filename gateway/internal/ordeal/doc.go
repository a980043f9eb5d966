// Package ordeal has no code of its own: its tests put the whole server, as processes with a real backend plugin, through what a server meets in its life. They kill
// it before and after every write and every call of the contract and compare what comes out with an undisturbed run, fill its disk, hang its backend, damage
// and lose its files and its database, back it up while it works, keep clients on it for as long as is wished, and count what crowds of them cost.
//
// The gateway is this package's test binary, which is the program tinsmith with decorators around the store and the contract: kill_test.go. The plugins are the ordinary ones.
package ordeal
