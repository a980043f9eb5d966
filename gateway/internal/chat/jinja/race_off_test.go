//go:build !race

package jinja_test

// raceDetector tells whether the tests run under the race detector, which takes memory and time several times over.
const raceDetector = false
