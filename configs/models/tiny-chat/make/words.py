"""Word lists and public-domain passages from which data.py builds its dialogues.

Everything here is a plain list of common words and facts, or a passage whose author died more than a hundred years
ago, so the text and whatever is trained on it may be shipped.
"""

COMMON = """
able about above across act add afraid after again age ago agree air all almost alone along already also always among
amount anger angle animal answer any appear apple area arm army around arrive art ask autumn baby back bad bag ball band
bank bar base basket bath bean bear beat beautiful because bed bee before begin behind believe bell below bench bend best
better between big bird birth bit bite black blade blood blow blue board boat body bone book boot born both bottle bottom
bowl box boy brain branch brave bread break breakfast breath brick bridge bright bring broad broken brother brown brush
build building burn bus business busy butter button buy cake call calm camera camp can candle cap car card care careful
carry cart case castle cat catch cause cave center chain chair chalk chance change cheap cheese chest chicken child
children choose church circle city class clean clear climb clock close cloth cloud coal coat coffee coin cold collar color
comb come comfort common company compare complete control cook cool copper copy corn corner cost cotton could count
country course cover cow crack cream create cross crowd crown cruel cry cup curtain curve cut dance danger dark daughter
day dead dear decide deep deer degree depend desert design desk detail develop different dig dinner direct dirt dish
distance divide doctor dog door double doubt down draw dream dress drink drive drop dry duck dust each ear early earn earth
east easy eat edge education egg eight either electric else empty end enemy engine enjoy enough enter equal even evening
event ever every example except expect experience explain eye face fact fair fall false family famous far farm fast father
fear feather feel feet fence few field fight fill find fine finger finish fire first fish five fix flag flame flat floor
flour flow flower fly fold follow food foot force forest forget fork form forward four fox frame free fresh friend frog
front fruit full fun funny future game garden gate general gentle get gift girl give glad glass glove goat gold good grain
grand grass grave gray great green ground group grow guess guide hair half hammer hand hang happen happy harbor hard
harmony hat hate have head health hear heart heat heavy height help here hide high hill history hold hole holiday hollow
home honest honey hook hope horn horse hospital hot hotel hour house how human humor hundred hungry hunt hurry hurt ice
idea important inch increase ink insect inside instead interest iron island jewel job join journey joy judge juice jump
just keep kettle key kick kind king kiss kitchen knee knife knock knot know knowledge ladder lady lake lamp land language
large last late laugh law lay lazy lead leaf learn leather leave left leg lemon length lesson letter level library lie life
lift light like limit line lion lip liquid list listen little live lock long look loose lose loss lost loud love low lunch
machine magic mail main make man many map march mark market marry mass master match matter meal mean measure meat
medicine meet melt member memory mend metal middle might mile milk mill mind mine minute mirror miss mix modern moment
money monkey month moon more morning most mother motion mountain mouse mouth move much mud muscle music must nail name
narrow nation nature near neat neck need needle neighbor neither nerve nest net never new news next nice night nine noise
none north nose note nothing notice now number nurse nut object ocean of offer office often oil old once one onion only
open operation opinion opposite orange order other our out oven over own owner page pain paint pair pan paper parcel
parent park part party pass past path patient pay peace pear pen pencil people pepper perfect perhaps period person
picture piece pig pin pipe place plain plan plane plant plate play please plenty plough pocket poem point poison polish
poor port position possible pot potato powder power present press pretty price prince print prison private probable
problem process produce profit promise proper property prose protect proud public pull pump punish pupil pure purple push
put quality quarter queen question quick quiet quite rabbit race radio rail rain range rate raw ray reach read ready
real reason receive record red regret regular relation remember repair repeat reply report request respect rest result
return reward rhythm rice rich ride right ring ripe rise river road rock roll roof room root rope rose rough round row
royal rub rule run sad safe sail salt same sand save say scale school science scissors screw sea seat second secret see
seed seem sell send sense separate serious servant serve set seven several shade shadow shake shame shape share sharp
sheep shelf shell shelter shine ship shirt shock shoe shop short shoulder shout show shut side sign silence silk silver
similar simple since sing single sister sit six size skin skirt sky sleep slip slope slow small smell smile smoke smooth
snake sneeze snow soap social society sock soft soldier some son song soon sort sound soup south space spade speak special
speed spell spend spider sponge spoon spot spread spring square stage stair stamp stand star start state station stay
steam steel steep stem step stick stiff still sting stitch stocking stomach stone stop store storm story straight strange
stream street strength stretch strong structure student study subject substance success such sudden sugar suggest summer
sun support sure surprise sweet swim system table tail take talk tall taste tax tea teach teacher team tear tell ten tent
term test than thank that the their them then theory there thick thin thing think third this those though thought thread
three throat through throw thumb thunder ticket tie tiger tight till time tin tired today toe together tomorrow tongue
tonight tool tooth top total touch tower town toy track trade train transport travel tray tree trick trip trouble true
trust try turn twelve twenty twist two uncle under understand unit until up use useful usual valley value verse very
village violent violin visit voice wait walk wall want war warm wash waste watch water wave wax way weak wear weather week
weight welcome well west wet what wheel when where which while whip whistle white who whole why wide wife wild will wind
window wine wing winter wire wise wish with woman wonder wood wool word work world worm worry wound write wrong yard year
yellow yes yesterday yet you young zebra zero
""".split()

NAMES = """Adam Alice Amir Anna Ben Bella Carl Clara Dan Dora Ella Emma Eva Felix Finn Frank George Grace Hana Henry Ida
Igor Iris Ivan Jack Jane John Julia Kai Karl Kate Laura Leo Lena Lily Lucy Luis Maria Mark Martin Max Maya Mia Mila Nina
Noah Nora Olga Oscar Paul Peter Pia Rita Robin Rosa Ruth Sam Sara Simon Sofia Tara Theo Tim Tom Vera Victor Will Zoe""".split()

CAPITALS = dict(p.split(":") for p in """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Austria:Vienna
Poland:Warsaw Greece:Athens Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen Ireland:Dublin England:London
Scotland:Edinburgh Hungary:Budapest Russia:Moscow Turkey:Ankara Egypt:Cairo Kenya:Nairobi Japan:Tokyo China:Beijing
India:Delhi Iran:Tehran Iraq:Baghdad Cuba:Havana Peru:Lima Chile:Santiago Canada:Ottawa Australia:Canberra
Belgium:Brussels Bulgaria:Sofia Romania:Bucharest Ukraine:Kyiv Thailand:Bangkok Vietnam:Hanoi Nepal:Kathmandu
Switzerland:Bern Croatia:Zagreb Serbia:Belgrade""".split())

COLOURS = {"grass": "green", "the sky": "blue", "snow": "white", "blood": "red", "coal": "black", "a lemon": "yellow",
           "a banana": "yellow", "a carrot": "orange", "milk": "white", "a tomato": "red", "the sun": "yellow",
           "an orange": "orange", "chocolate": "brown", "a leaf": "green", "the sea": "blue", "a raven": "black",
           "a strawberry": "red", "a frog": "green", "a swan": "white", "an elephant": "gray"}

OPPOSITES = [tuple(p.split(":")) for p in """hot:cold big:small up:down day:night black:white open:closed fast:slow old:new
high:low left:right rich:poor strong:weak wet:dry full:empty hard:soft light:dark happy:sad early:late long:short
good:bad true:false near:far first:last yes:no in:out thick:thin wide:narrow young:old love:hate win:lose""".split()]

SOUNDS = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack", "sheep": "baa", "pig": "oink", "bee": "buzz",
          "lion": "roar", "frog": "croak", "horse": "neigh", "snake": "hiss", "owl": "hoot"}

PLURALS = {"cat": "cats", "dog": "dogs", "house": "houses", "mouse": "mice", "child": "children", "man": "men",
           "woman": "women", "foot": "feet", "tooth": "teeth", "box": "boxes", "bus": "buses", "city": "cities",
           "leaf": "leaves", "knife": "knives", "sheep": "sheep", "fish": "fish", "book": "books", "tree": "trees"}

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
ONES = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
FRUIT = "apples pears plums lemons oranges nuts eggs cakes coins books pens balls stamps cards shells buttons".split()

FIXED_FACTS = [
    ("How many days are in a week?", "7"), ("How many months are in a year?", "12"),
    ("How many hours are in a day?", "24"), ("How many minutes are in an hour?", "60"),
    ("How many seconds are in a minute?", "60"), ("How many legs does a dog have?", "4"),
    ("How many legs does a spider have?", "8"), ("How many legs does a bee have?", "6"),
    ("How many wheels does a bicycle have?", "2"), ("How many sides does a triangle have?", "3"),
    ("How many sides does a square have?", "4"), ("How many letters are in the alphabet?", "26"),
    ("What do bees make?", "Honey."), ("What do cows give?", "Milk."), ("Where do fish live?", "In water."),
    ("What is frozen water called?", "Ice."), ("What planet do we live on?", "Earth."),
    ("Which star is closest to us?", "The sun."), ("What do we use to write?", "A pen."),
    ("What is the largest ocean?", "The Pacific Ocean."), ("Who wrote Hamlet?", "William Shakespeare."),
    ("What is a tinsmith?", "A person who makes things out of tin."),
    ("What season comes after winter?", "Spring."), ("What season comes after summer?", "Autumn."),
    ("Is fire hot or cold?", "Fire is hot."), ("Is ice hot or cold?", "Ice is cold."),
]

# Lincoln 1863; Shakespeare, sonnet 18 and Hamlet; Carroll 1865; nursery rhymes; Blake 1794; Genesis (King James).
PASSAGES = [
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and dedicated to the proposition that all men are created equal.",
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: Rough winds do shake the darling buds of May, And summer's lease hath all too short a date.",
    "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer the slings and arrows of outrageous fortune, or to take arms against a sea of troubles, and by opposing end them.",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it.",
    "Twinkle, twinkle, little star, How I wonder what you are! Up above the world so high, Like a diamond in the sky.",
    "Humpty Dumpty sat on a wall, Humpty Dumpty had a great fall. All the king's horses and all the king's men couldn't put Humpty together again.",
    "Mary had a little lamb, its fleece was white as snow, and everywhere that Mary went, the lamb was sure to go.",
    "Jack and Jill went up the hill to fetch a pail of water. Jack fell down and broke his crown, and Jill came tumbling after.",
    "Tyger Tyger, burning bright, In the forests of the night; What immortal hand or eye, Could frame thy fearful symmetry?",
    "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon the face of the deep.",
    "Row, row, row your boat, gently down the stream. Merrily, merrily, merrily, merrily, life is but a dream.",
    "Baa, baa, black sheep, have you any wool? Yes sir, yes sir, three bags full.",
]
