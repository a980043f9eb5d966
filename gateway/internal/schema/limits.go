package schema

// Bounds of what is compiled. Each counts bytes, nodes or steps, never time, so that what is refused is refused everywhere and always.
const (
	MaxSchemaBytes     = 256 << 10 // text of a schema
	MaxGrammarBytes    = 64 << 10  // text of a GBNF grammar
	MaxWhitespaceBytes = 256       // of a pattern for white space
	MaxDepth           = 256       // nesting of a schema's JSON
	MaxNodes           = 50_000    // schemas in a schema
	MaxProperties      = 10_000    // names of one object
	MaxEnumValues      = 20_000    // values of all enums
	MaxEnumBytes       = 1 << 20   // text of all enums
	MaxPatternBytes    = 1 << 20   // text of all patterns and names
	MaxClassRanges     = 400_000   // ranges of characters of which the classes of all patterns are made
	MaxChoices         = 4096      // of a choice

	maxCount           = 1 << 30   // lengths and counts beyond are as good as none
	maxMade            = 200_000   // schemas that stand for parts of listed values
	maxMergeSteps      = 10_000    // pairs of alternatives that are put together
	maxAlternatives    = 1_000     // of one value
	maxShapes          = 50_000    // combinations of schemas that one value can be under
	maxStates          = 4_096     // places of one object or array
	maxAllStates       = 100_000   // of all of them
	maxRemainder       = 10_000    // a divisor after scaling
	maxOverlaps        = 64        // classes of keys that patterns cut an object's other keys into
	maxDependent       = 16        // keys in the dependencies of one object
	maxDemands         = 6         // members that one object must have without their names being known
	maxExpressionSteps = 120_000   // derivatives that finding empty expressions in a grammar takes
	maxProblems        = 8         // told about a finished value
	maxValidateSteps   = 2_000_000 // of one validation
	maxCheckSteps      = 300_000   // of all checks of listed values while a schema is compiled
	maxPatternSteps    = 500_000   // of one pattern on one string
	maxNameSteps       = 1_500_000 // of all patterns on all names of properties while a schema is compiled
	maxInstanceBytes   = 16 << 20  // of a finished value
	maxInstanceDepth   = 10_000    // of a finished value
	numberDigits       = 64        // in each part of a number
	spaceWidth         = 64        // spaces or tabs after a newline
	maxUniqueValues    = 64        // values that the items of an array without repeats may have in the mask
)
