//! Every word and every sentence frame that the generator knows.
//!
//! A frame is English with holes: `{P}` a person, `{I}` an item, `{L}` a place, `{Y}` a year, `{base}`, `{past}` and
//! `{done}` the forms of a verb, `{at}` a preposition before a place. The frames of the evaluation part are built
//! from words that the training frames hold too, in other constructions.

/// Beginnings of given names; each is one piece of the vocabulary.
pub(super) const GIVEN: [&str; 32] = [
    "al", "bel", "cor", "dan", "el", "fen", "gar", "hal", "ing", "jor", "kal", "lor", "mar", "nel", "ott", "per",
    "quin", "ros", "sel", "tam", "urs", "ver", "wil", "yor", "zan", "bri", "cle", "dro", "fla", "gre", "tri", "stef",
];
/// Endings of given names.
pub(super) const GIVEN_END: [&str; 20] = [
    "ora", "ina", "eth", "ian", "ello", "ana", "ic", "us", "ette", "ard", "una", "ias", "ena", "olf", "is", "ita",
    "ane", "or", "eda", "imo",
];
/// Beginnings of family names.
pub(super) const FAMILY: [&str; 32] = [
    "ash", "badge", "brook", "chil", "dun", "east", "farn", "grant", "hart", "king", "lang", "mill", "north", "oak",
    "pike", "rad", "sand", "stone", "thorn", "usher", "west", "wood", "birch", "bram", "finch", "fox", "hazel", "hay",
    "lock", "moss", "rush", "swan",
];
/// Endings of family names.
pub(super) const FAMILY_END: [&str; 16] = [
    "bridge", "croft", "dale", "low", "field", "gate", "ham", "ley", "man", "more", "shaw", "son", "ton", "well",
    "wright", "worth",
];
/// Beginnings of place names.
pub(super) const PLACE: [&str; 32] = [
    "ab", "bal", "cas", "dov", "esk", "fal", "glen", "holm", "inver", "kel", "lin", "mor", "nar", "ost", "pen", "rav",
    "sal", "tor", "ul", "vel", "wex", "ard", "bux", "cam", "dray", "elm", "gris", "hex", "kir", "lud", "mel", "tarn",
];
/// Endings of place names.
pub(super) const PLACE_END: [&str; 16] = [
    "burg", "by", "cester", "combe", "den", "ford", "haven", "holt", "mouth", "port", "stead", "stow", "thorpe",
    "ville", "wick", "mere",
];
/// What an item is like.
pub(super) const ADJECTIVES: [&str; 32] = [
    "copper", "silver", "wooden", "golden", "iron", "painted", "broken", "old", "tiny", "round", "blue", "green",
    "white", "yellow", "purple", "heavy", "hollow", "marble", "leather", "glass", "velvet", "rusty", "carved",
    "striped", "ancient", "plain", "amber", "ivory", "bronze", "paper", "crooked", "shiny",
];
/// What an item is.
pub(super) const NOUNS: [&str; 40] = [
    "lamp", "bell", "chest", "clock", "coin", "crown", "cup", "drum", "flute", "globe", "harp", "jar", "kettle", "key",
    "knife", "ladder", "map", "mask", "mirror", "necklace", "pipe", "plate", "pot", "ring", "rope", "saddle", "scarf",
    "shield", "spoon", "statue", "stool", "sword", "table", "tile", "trumpet", "umbrella", "vase", "violin", "wheel",
    "whistle",
];
/// The first half of a year.
pub(super) const CENTURIES: [&str; 3] = ["17", "18", "19"];

/// The forms of a verb: to `base`, they `past`, it was `done`.
pub(super) struct Verb {
    pub(super) base: &'static str,
    pub(super) past: &'static str,
    pub(super) done: &'static str,
}

const fn verb(base: &'static str, past: &'static str, done: &'static str) -> Verb {
    Verb { base, past, done }
}

/// What a passage is about: verbs that mean nearly the same.
pub(super) const THEMES: [&[Verb]; 10] = [
    &[
        verb("find", "found", "found"),
        verb("discover", "discovered", "discovered"),
        verb("spot", "spotted", "spotted"),
    ],
    &[
        verb("make", "made", "made"),
        verb("craft", "crafted", "crafted"),
        verb("fashion", "fashioned", "fashioned"),
    ],
    &[
        verb("sell", "sold", "sold"),
        verb("trade", "traded", "traded"),
        verb("auction", "auctioned", "auctioned"),
    ],
    &[
        verb("buy", "bought", "bought"),
        verb("purchase", "purchased", "purchased"),
        verb("acquire", "acquired", "acquired"),
    ],
    &[
        verb("lose", "lost", "lost"),
        verb("misplace", "misplaced", "misplaced"),
        verb("forget", "forgot", "forgotten"),
    ],
    &[
        verb("repair", "repaired", "repaired"),
        verb("mend", "mended", "mended"),
        verb("restore", "restored", "restored"),
    ],
    &[
        verb("hide", "hid", "hidden"),
        verb("bury", "buried", "buried"),
        verb("conceal", "concealed", "concealed"),
    ],
    &[
        verb("draw", "drew", "drawn"),
        verb("sketch", "sketched", "sketched"),
        verb("describe", "described", "described"),
    ],
    &[
        verb("steal", "stole", "stolen"),
        verb("take", "took", "taken"),
        verb("seize", "seized", "seized"),
    ],
    &[
        verb("show", "showed", "shown"),
        verb("display", "displayed", "displayed"),
        verb("present", "presented", "presented"),
    ],
];

/// Prepositions before a place.
pub(super) const AT: [&str; 3] = ["in", "near", "at"];

/// Sentences that hold no fact.
pub(super) const FILLERS: [&str; 12] = [
    "Old letters tell the story.",
    "The town records are short.",
    "Few people knew about it.",
    "The news was soon in every paper.",
    "Many visitors came to see it.",
    "Nobody was surprised.",
    "The weather was bad that week.",
    "A long letter described the day.",
    "The museum keeps a list.",
    "Several people wrote about these events.",
    "There was a small crowd.",
    "It is still a popular story.",
];

/// How a training passage states a fact.
pub(super) const FACTS: [&str; 9] = [
    "{P} {past} {I} {at} {L} in {Y}.",
    "In {Y}, {P} {past} {I} {at} {L}.",
    "{I} was {done} by {P} {at} {L} in {Y}.",
    "In {Y}, {I} was {done} {at} {L} by {P}.",
    "{at} {L}, {P} {past} {I} in {Y}.",
    "It was {P} who {past} {I} {at} {L} in {Y}.",
    "{P} went to {L} in {Y} and {past} {I} there.",
    "The year was {Y} when {P} {past} {I} {at} {L}.",
    "{L} was the place where {P} {past} {I} in {Y}.",
];
/// How a passage of the evaluation part states a fact.
pub(super) const FACTS_HELD_OUT: [&str; 5] = [
    "It was in {Y} that {P} {past} {I} {at} {L}.",
    "{at} {L}, in {Y}, {I} was {done} by {P}.",
    "{P} was {at} {L} in {Y} and {past} {I} there.",
    "{I} was {done} in {Y} by {P} {at} {L}.",
    "The place where {P} {past} {I} in {Y} was {L}.",
];

/// Training questions, by what they ask for: person, item, place, year.
pub(super) const QUESTIONS: [&[&str]; 4] = [
    &[
        "Who {past} {I}?",
        "Who {past} {I} {at} {L}?",
        "Who {past} {I} in {Y}?",
        "By whom was {I} {done}?",
        "Which person {past} something {at} {L}?",
        "Who was it that {past} {I}?",
        "Who {past} something in {Y}?",
        "Who went to {L}?",
    ],
    &[
        "What did {P} {base}?",
        "What did {P} {base} {at} {L}?",
        "What was {done} by {P}?",
        "What was {done} {at} {L} in {Y}?",
        "Which thing did {P} {base}?",
        "What thing was {done} {at} {L}?",
        "What did {P} {base} in {Y}?",
        "What was it that {P} {past} in {Y}?",
    ],
    &[
        "Where did {P} {base} {I}?",
        "Where was {I} {done}?",
        "In which place did {P} {base} {I}?",
        "At which place was {I} {done} by {P}?",
        "Where did {P} {base} something?",
        "Where was something {done} by {P}?",
        "Where did {P} go in {Y}?",
        "What was the place where {P} {past} something in {Y}?",
    ],
    &[
        "When did {P} {base} {I}?",
        "In what year was {I} {done}?",
        "When was {I} {done} {at} {L}?",
        "In what year did {P} {base} something?",
        "What was the year when {P} {past} {I}?",
        "When was something {done} {at} {L}?",
        "When did {P} go to {L}?",
        "In what year was something {done} by {P}?",
    ],
];
/// Questions of the evaluation part.
pub(super) const QUESTIONS_HELD_OUT: [&[&str]; 4] = [
    &[
        "Which person {past} {I}?",
        "By whom was {I} {done} {at} {L}?",
        "Who was it that {past} something in {Y}?",
        "By whom was something {done} {at} {L}?",
    ],
    &[
        "Which thing was {done} by {P}?",
        "What was {done} {at} {L}?",
        "What was it that {P} {past}?",
        "Which thing did {P} {base} in {Y}?",
    ],
    &[
        "In which place was {I} {done}?",
        "What was the place where {P} {past} {I}?",
        "At which place did {P} {base} something?",
        "Where was {I} {done} in {Y}?",
    ],
    &[
        "When was {I} {done} by {P}?",
        "In what year did {P} {base} {I}?",
        "What was the year when {I} was {done}?",
        "In what year was something {done} {at} {L}?",
    ],
];
