// A row of a CSR block, which stays where it is.
#pragma once

struct CsrRow {
    const T *__restrict__ data;
    const I *__restrict__ indices;
    long long count;  // entries
};
