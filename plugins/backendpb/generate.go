// Package backendpb is the generated wire form of the contract in package plugins; backend.proto is its source. Only package plugins uses it.
package backendpb

//go:generate python3 -m grpc_tools.protoc -I. --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative backend.proto
