package tensor

// Paced is implemented by devices whose operations return before they are done.
type Paced interface {
	// Pace marks what has been launched so far, and waits for what the call before has marked: a host that calls it after every step is ahead of the device by two steps at most, and the device always has the next one. Two calls with
	// nothing between them wait for everything.
	Pace() error
}

// Routed is implemented by devices that find out, when they are opened, by which of several ways with the same bits they multiply.
type Routed interface {
	// Routes says by which, and why not by others, for people to read. It may have names of files in it.
	Routes() string
}

// Rated is implemented by devices that know how fast they can be at most.
type Rated interface {
	// PeakRate is how many operations a second the device does at most in products with weights of a type, a multiplication and an addition counted as two; 0 if it does not know.
	PeakRate(weights DType) float64
}
