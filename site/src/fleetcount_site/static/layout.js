"use strict";
/* The fields of every canonical layout (docs/wire.md, "Notation"), read off the front of bytes. Nothing but the one
 * spelling passes; every length is checked before it is used. Whole numbers are BigInt where they may pass 2^53. */
(function (fleetcount) {
  class DecodeError extends Error {}

  const MOST_TERM = 2n ** 63n - 1n;
  const REFUSED = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u;

  function refuse(message) {
    throw new DecodeError(message);
  }

  function require(holds, message) {
    if (!holds) refuse(message);
  }

  function gcd(a, b) {
    while (b) [a, b] = [b, a % b];
    return a < 0n ? -a : a;
  }

  /* An exact fraction in lowest terms, its denominator above 0. */
  class Fraction {
    constructor(numerator, denominator) {
      this.numerator = numerator;
      this.denominator = denominator;
    }

    static of(numerator, denominator) {
      const [top, below] = [BigInt(numerator), BigInt(denominator === undefined ? 1 : denominator)];
      const common = gcd(top, below) * (below < 0n ? -1n : 1n);
      return new Fraction(top / common, below / common);
    }

    compare(other) {
      const left = this.numerator * other.denominator,
        right = other.numerator * this.denominator;
      return left < right ? -1 : left > right ? 1 : 0;
    }

    plus(other) {
      return Fraction.of(
        this.numerator * other.denominator + other.numerator * this.denominator,
        this.denominator * other.denominator,
      );
    }

    minus(other) {
      return this.plus(new Fraction(-other.numerator, other.denominator));
    }

    times(other) {
      return Fraction.of(this.numerator * other.numerator, this.denominator * other.denominator);
    }

    /* The nearest double, or one beside it: for display. */
    get number() {
      const size = (value) => (value < 0n ? -value : value).toString(2).length;
      const excess = Math.max(size(this.numerator), size(this.denominator)) - 1000;
      if (excess <= 0) return Number(this.numerator) / Number(this.denominator);
      return Number(this.numerator >> BigInt(excess)) / Number(this.denominator >> BigInt(excess));
    }

    toString() {
      return this.denominator === 1n ? String(this.numerator) : this.numerator + "/" + this.denominator;
    }

    /* As people write it: a decimal where it has one of at most 28 places, as in labels of bins. */
    get decimal() {
      for (let places = 0; places <= 28; places++) {
        const ten = 10n ** BigInt(places);
        if (ten % this.denominator !== 0n) continue;
        const scaled = String((this.numerator < 0n ? -this.numerator : this.numerator) * (ten / this.denominator));
        const digits = scaled.padStart(places + 1, "0"),
          sign = this.numerator < 0n ? "-" : "";
        return sign + digits.slice(0, digits.length - places) + (places ? "." + digits.slice(-places) : "");
      }
      return String(this);
    }

    /* A level above 0 in digits: all of them where they end within 12 places, else rounded down to 4 (interval_words.py). */
    get ending() {
      const ends = 10n ** 12n % this.denominator === 0n;
      return ends ? this.decimal : Fraction.of((this.numerator * 10n ** 4n) / this.denominator, 10n ** 4n).decimal;
    }
  }

  function checkText(text, smallest, largest) {
    require(!REFUSED.test(text), "a text holds a control, format or unassigned character");
    require(text.normalize("NFC") === text, "a text is not in Unicode normal form NFC");
    const size = new TextEncoder().encode(text).length;
    require(size >= smallest && size <= largest, "a text has " +
      size +
      " UTF-8 bytes, not " +
      smallest +
      " to " +
      largest);
    require(text === text.trim(), "a text begins or ends with white space");
  }

  class Reader {
    constructor(data, what, largest) {
      require(data.length <= largest, what + " has " + data.length + " bytes, more than " + largest);
      this.data = data;
      this.at = 0;
      this.what = what;
      this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    }

    take(size) {
      const end = this.at + size;
      require(end <= this.data.length, this.what +
        " ends " +
        (end - this.data.length) +
        " bytes short at byte " +
        this.at);
      const taken = this.data.subarray(this.at, end);
      this.at = end;
      return taken;
    }

    ascii(size) {
      return String.fromCharCode(...this.take(size));
    }

    uint(size) {
      return this.take(size).reduce((value, byte) => value * 256 + byte, 0);
    }

    wide(size) {
      return this.take(size).reduce((value, byte) => value * 256n + BigInt(byte), 0n);
    }

    /* A time in seconds: eight bytes of which nothing beyond 2^53 is a time anyway. */
    time() {
      const value = this.wide(8);
      require(value <= 253402300799n, this.what + " has the time " + value + ", allowed: to the year 9999");
      return Number(value);
    }

    int64() {
      this.take(8);
      return this.view.getBigInt64(this.at - 8);
    }

    /* A signed number whose negative has 63 bits, too. */
    term() {
      const value = this.int64();
      require(value >= -MOST_TERM, this.what + " holds a number beyond 63 bits and a sign");
      return value;
    }

    count(size, smallest, largest) {
      const value = this.uint(size);
      require(value >= smallest && value <= largest, this.what +
        " counts " +
        value +
        " parts, not " +
        smallest +
        " to " +
        largest);
      return value;
    }

    sized(size, smallest, largest) {
      return this.take(this.count(size, smallest, largest));
    }

    text(smallest, largest) {
      let text;
      try {
        text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.sized(2, smallest, largest));
      } catch (error) {
        refuse(error instanceof DecodeError ? error.message : this.what + " holds a text that is no UTF-8");
      }
      checkText(text, smallest, largest);
      return text;
    }

    flag() {
      return this.count(1, 0, 1) === 1;
    }

    fraction() {
      const numerator = this.int64(),
        denominator = this.wide(8);
      require(numerator >= -MOST_TERM && denominator <= MOST_TERM, this.what + " holds a term beyond 2^63 - 1");
      return this.lowest(numerator, denominator);
    }

    wideFraction() {
      const negative = this.flag();
      const [numerator, denominator] = [0, 1].map(() => {
        const magnitude = this.sized(1, 0, 64);
        require(magnitude[0] !== 0, this.what + " holds a number with a leading zero byte");
        return magnitude.reduce((value, byte) => value * 256n + BigInt(byte), 0n);
      });
      require(!negative || numerator !== 0n, this.what + " holds a negative zero");
      return this.lowest(negative ? -numerator : numerator, denominator);
    }

    lowest(numerator, denominator) {
      require(denominator !== 0n, this.what + " holds a fraction over zero");
      require(gcd(numerator, denominator) === 1n, this.what + " holds a fraction that is not in lowest terms");
      return new Fraction(numerator, denominator);
    }

    finish() {
      require(this.at === this.data.length, this.what + " has " + (this.data.length - this.at) + " trailing bytes");
    }
  }

  fleetcount.layout = { DecodeError, Fraction, Reader, require, refuse };
})((window.fleetcount = window.fleetcount || {}));
