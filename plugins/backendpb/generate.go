// Package backendpb is the generated wire form of the contract in package plugins; backend.proto and remote.proto are its sources. Only package plugins uses it.
package backendpb

//go:generate ../../e2e/generated.sh write
